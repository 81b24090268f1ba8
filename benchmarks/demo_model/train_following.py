"""Teaches the few-step model to show what its prompts say.

    PYTHONPATH=benchmarks python -m demo_model.train_following --vae out/demo/vae \\
        --few out/demo/few --reader out/demo/reader --out out/demo/following --minutes 10 --finish

Errors of latents say little of a small object's shape: it is a few of 768 places, and a star is not
far from a cross. So what the model made is read by a network that was trained to tell shapes and
directions (``train_reader.py``), and the model is taught to be read as its prompt says, as reward
fine-tuning does (DRaFT, arXiv 2309.17400): a first block through all of its steps, and each block
with a history through one. Noise on what is read keeps the model from finding what fools the reader
alone, and two other losses keep all else as it is: blocks with a history are held to the clips' own
as in ``train_few_step.py``, first blocks that were read right before this training to what they
were.

It is spinning objects that need this. They begin at any angle, of which a mean is round: the steps
before leave two thirds of them as discs and squares, and all shapes that stand still right.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from demo_model.train_few_step import later_loss, levels_of
from demo_model.train_flow import add_plan, load_trained, networks_of, plan_of
from demo_model.train_reader import disturbed, load_reader
from demo_model.train_vae import load_vae
from demo_model.training import log
from demo_model.training.batches import Batch, Networks, draw_batch, flows_of
from demo_model.training.flow import clean_of, noised
from demo_model.training.forward import text_keys_values
from demo_model.training.loop import Options, add_options, generator, options_of, train
from demo_model.training.lowered import frozen, lowered
from demo_model.training.networks import Sizes, demo_sizes
from demo_model.training.reader import Reader, reading_loss
from demo_model.training.self_forcing import History, continued, normal
from demo_model.training.shelves import Encoder, Plan, Shelf, Shelves
from vidc.exporters.causal_wan.model import CausalWan

SURE = 0.3
"""Nats, summed over the colours, below which a block's shapes are plain: beyond that a model finds
what fools the reader sooner than what looks better."""


@dataclass(frozen=True)
class Batches:
    """What a step sees.

    Attributes:
        clips: that are rolled out.
        starts: first blocks.
        history: of rolled-out clips.
        emphasis: how much more an error counts where an object of a rolled-out clip is.
        reading: how much a nat of what is read counts beside mean squares.
    """

    clips: int = 32
    starts: int = 320
    history: History = field(default_factory=History)
    emphasis: float = 3.0
    reading: float = 0.05


class FollowingLoss:
    """The loss of a step: mean squares of clean latents, and what is read of them."""

    def __init__(
        self,
        student: Networks,
        before: Networks,
        reader: Reader,
        shelves: Shelves,
        sizes: Sizes,
        batches: Batches,
        options: Options,
    ) -> None:
        self._student = student
        self._before = before
        self._reader = reader
        self._shelves = shelves
        self._sizes = sizes
        self._batches = batches
        self._options = options

    def __call__(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss and its parts."""
        options, plan = self._options, self._batches
        draw = generator(options.seed, step, 4, options.device)
        choose = random.Random(f"following {options.seed} {step}")
        levels = levels_of(self._sizes.stream.sigmas, choose)
        shelf = self._shelves.clips(step)
        clips = draw_batch(shelf, plan.clips, draw)
        starts = draw_batch(self._shelves.starts(step), plan.starts, draw)

        def taught(transformer: CausalWan) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            student = replace(self._student, transformer=transformer)
            later = self._later(student, shelf, clips, levels, choose, draw)
            return later, self._first(student, starts, levels, draw)

        parts = lowered(self._student.transformer, options.device, taught)
        loss = sum(
            (part["error"] + plan.reading * part["doubt"] for part in parts),
            torch.zeros((), device=draw.device),
        )
        later, first = parts
        return loss, {
            **{f"clips {name}": value.detach() for name, value in later.items()},
            **{f"starts {name}": value.detach() for name, value in first.items()},
        }

    def _later(
        self,
        student: Networks,
        shelf: Shelf,
        batch: Batch,
        levels: tuple[float, ...],
        choose: random.Random,
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """Losses on blocks with a history."""
        spec, plan = self._sizes.stream, self._batches
        made = continued(student, spec, plan.history, shelf, batch, levels, choose, draw)
        error, _ = later_loss(made, batch, plan.emphasis)
        wanted = batch.attributes[:, made.own :].flatten(0, 1)
        return {"error": error, **self._read(made.found.flatten(0, 1), wanted, draw)}

    def _first(
        self,
        student: Networks,
        batch: Batch,
        levels: tuple[float, ...],
        draw: torch.Generator,
    ) -> dict[str, Tensor]:
        """Losses on first blocks, through all of their steps."""
        noise = normal(torch.Size((len(levels), *batch.latents[:, 0].shape)), draw)
        wanted = batch.attributes[:, 0]
        made = _sampled(student, batch, noise, levels)
        with torch.no_grad():
            known = _sampled(self._before, batch, noise, levels)
            right = (self._reader(known)[0].argmax(2) == wanted[..., 0]).all(1)
        square = (made - known).square().mean((1, 2, 3, 4))
        error = (square * right).sum() / right.sum().clamp_min(1)
        return {"error": error, **self._read(made, wanted, draw)}

    def _read(self, latents: Tensor, wanted: Tensor, draw: torch.Generator) -> dict[str, Tensor]:
        shape, _, right = reading_loss(self._reader, disturbed(latents, draw), wanted)
        return {"doubt": (shape - SURE).relu().mean(), "right": right}


def _sampled(networks: Networks, batch: Batch, noise: Tensor, levels: Sequence[float]) -> Tensor:
    """First blocks as a session samples them, ``[B, F, C, h, w]``, with gradients of all steps."""
    text = text_keys_values(networks.transformer, networks.embeds(batch.tokens[:, :1]))
    latent = noise[0]
    for index, value in enumerate(levels):
        level = torch.full((len(latent), 1), value, device=latent.device)
        if index:
            latent = noised(latent, noise[index], level[:, 0])
        noisy = latent[:, None]
        flow = flows_of(networks, batch.groups, batch.latents, noisy, level, text)
        latent = clean_of(latent, flow[:, 0], level[:, 0])
    return latent


def run(
    options: Options,
    sizes: Sizes,
    folders: Mapping[str, Path],
    plan: Plan,
    batches: Batches,
) -> None:
    """Trains and prints a table; folders of ``vae``, ``few`` and ``reader``."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    vae, statistics = load_vae(folders["vae"], sizes, options.device)
    # Numbers that no stage before was trained on.
    shelves = Shelves(Encoder(sizes, vae, statistics, options.device), plan, options.seed + 3)
    modules = load_trained(folders["few"], sizes, options.device)
    fixed = load_trained(folders["few"], sizes, options.device).requires_grad_(False)
    student = networks_of(modules, sizes, plan.farthest, options)
    before = networks_of(fixed, sizes, 1, options)
    before = replace(before, transformer=frozen(before.transformer, options.device))
    reader = load_reader(folders["reader"], sizes, options.device)
    loss = FollowingLoss(student, before, reader, shelves, sizes, batches, options)
    facts = {"part": "following", "mean": statistics.mean, "std": statistics.std}
    steps = train(options, modules, loss, facts, shelves.prepare)
    print(log.table(log.read(options.out / "log.jsonl")))
    print(f"{steps} steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=3e-4)
    add_plan(parser)
    parser.add_argument("--few", type=Path, required=True, help="what train_few_step left")
    parser.add_argument("--reader", type=Path, required=True, help="what train_reader left")
    parser.add_argument("--clips", type=int, default=Batches.clips)
    parser.add_argument("--starts", type=int, default=Batches.starts)
    parser.add_argument("--reading", type=float, default=Batches.reading)
    parser.set_defaults(shelf_blocks=8)
    arguments = parser.parse_args()
    batches = replace(
        Batches(), clips=arguments.clips, starts=arguments.starts, reading=arguments.reading
    )
    sizes = demo_sizes(arguments.preset)
    options, plan = options_of(arguments), plan_of(arguments)
    folders = {name: getattr(arguments, name) for name in ("vae", "few", "reader")}
    run(options, sizes, folders, plan, batches)


if __name__ == "__main__":
    main()
