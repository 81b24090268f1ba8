"""Makes the demo model's flow one that the sampler's four steps follow, and fewer nearly so.

    PYTHONPATH=benchmarks python -m demo_model.train_few_step --vae out/demo/vae \\
        --flow out/demo/flow --out out/demo/few --minutes 10
    PYTHONPATH=benchmarks python -m demo_model.train_few_step --vae out/demo/vae \\
        --flow out/demo/flow --out out/demo/few --minutes 10 --finish

The sampler asks at each of its levels for the clean latent, and noises that for the next level. A
flow that was matched answers with the mean of all clean latents that might be meant, which is right
where only one might. So the two kinds of blocks are taught in two ways, both of them regressions
to a target that is one for each input: no critic, no score of fakes, nothing that may diverge.

- *A block with a history* follows from it but for the encoder's noise: what is taught is to go on
  from histories that the model made itself. A stretch of a clip is rolled out as a session does,
  and each block is held to the clip's own, all of them in one forward: no gradient passes through
  latents, so what a block began with may be taken as it was. That is self-forcing with the data in
  place of a critic, which is possible because the data have one continuation, and it is what keeps
  a hundred blocks from drifting: an error in the history is one that the next block is taught to
  undo.
- *A first block* may be any of many: texture, places and phases are chance. Its target is where the
  teacher's flow leads from the very latent that the student has at this level, on the student's
  own way there. Of that there is one, and a texture of many equal waves it takes there by a mere
  scale, so that few steps give it whole, where means would be blurred.

Steps are those of the preset; in a part of the batches three or two of them, each beginning at the
first level and ending at the last one.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from demo_model.train_flow import add_plan, load_trained, networks_of, plan_of
from demo_model.train_vae import load_vae
from demo_model.training import log
from demo_model.training.batches import Batch, Networks, draw_batch, flows_of, without_prompt
from demo_model.training.flow import clean_of, shifted
from demo_model.training.forward import text_keys_values
from demo_model.training.loop import Options, add_options, generator, options_of, train
from demo_model.training.lowered import frozen, lowered
from demo_model.training.networks import Sizes, demo_sizes
from demo_model.training.rollout import Stream, few_steps, follow_flow
from demo_model.training.self_forcing import History, continued, normal
from demo_model.training.shelves import Encoder, Plan, Shelf, Shelves
from vidc.exporters.parts.causal_wan.network import CausalWan

FEWER = 0.4
"""Share of batches that take fewer steps than the preset has."""


@dataclass(frozen=True)
class Batches:
    """What a step sees.

    Attributes:
        clips: that are rolled out.
        starts: first blocks.
        history: of rolled-out clips.
        emphasis: how much more an error counts where an object of a rolled-out clip is.
        flow_steps: of the teacher from pure noise; from lower levels fewer. With one its answer is
            taken as it is, for a teacher that has few steps itself and whose first blocks are to
            stay.
        guidance: of the teacher on first blocks.
    """

    clips: int = 32
    starts: int = 256
    history: History = field(default_factory=History)
    emphasis: float = 3.0
    flow_steps: int = 8
    guidance: float = 1.0


def subsets(levels: Sequence[float]) -> list[tuple[float, ...]]:
    """The levels, and shorter ways through them: the first, the last, and what lies lowest."""
    return [tuple(levels), *(_shorter(levels, count) for count in range(2, len(levels)))]


def _shorter(levels: Sequence[float], count: int) -> tuple[float, ...]:
    return (levels[0], *levels[len(levels) - count + 1 :])


def levels_of(sigmas: Sequence[float], choose: random.Random) -> tuple[float, ...]:
    """The levels of a step's batches: all that the preset has, or fewer."""
    whole, *fewer = subsets(sigmas)
    return choose.choice(fewer) if fewer and choose.random() < FEWER else whole


class FewStepLoss:
    """The loss of a step: rolled-out clips and first blocks, in mean squares of clean latents."""

    def __init__(
        self,
        student: Networks,
        teacher: Networks,
        shelves: Shelves,
        sizes: Sizes,
        batches: Batches,
        options: Options,
    ) -> None:
        self._student = student
        self._teacher = teacher
        self._shelves = shelves
        self._sizes = sizes
        self._batches = batches
        self._options = options

    def __call__(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss, and that of either part."""
        options, plan = self._options, self._batches
        draw = generator(options.seed, step, 2, options.device)
        choose = random.Random(f"few {options.seed} {step}")
        levels = levels_of(self._sizes.stream.sigmas, choose)
        shelf = self._shelves.clips(step)
        clips = draw_batch(shelf, plan.clips, draw)
        starts = draw_batch(self._shelves.starts(step), plan.starts, draw)

        def taught(transformer: CausalWan) -> tuple[Tensor, Tensor, Tensor]:
            student = replace(self._student, transformer=transformer)
            later, last = self._later(student, shelf, clips, levels, choose, draw)
            return later, last, self._first(student, starts, levels, choose, draw)

        later, last, first = lowered(self._student.transformer, options.device, taught)
        return later + first, {"clips": later, "last block": last, "starts": first}

    def _later(
        self,
        student: Networks,
        shelf: Shelf,
        batch: Batch,
        levels: tuple[float, ...],
        choose: random.Random,
        draw: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """The loss on blocks with a history, and the mean square error of the last one."""
        spec, history = self._sizes.stream, self._batches.history
        made = continued(student, spec, history, shelf, batch, levels, choose, draw)
        wanted = batch.latents[:, made.own :]
        weight = 1 + self._batches.emphasis * batch.shown[:, made.own :, :, None]
        loss = (weight * (made.found - wanted).square()).mean()
        return loss, (made.last - wanted[:, -1]).square().mean()

    def _first(
        self,
        student: Networks,
        batch: Batch,
        levels: tuple[float, ...],
        choose: random.Random,
        draw: torch.Generator,
    ) -> Tensor:
        """The loss on first blocks, at one of the levels."""
        teacher, plan = self._teacher, self._batches
        tokens = batch.tokens[:, :1]
        text = text_keys_values(student.transformer, student.embeds(tokens))
        stream = Stream(student, self._sizes.stream, text)
        noise = normal(torch.Size((len(levels), *batch.latents[:, 0].shape)), draw)
        index = choose.randrange(len(levels))
        begun, _ = few_steps(stream, noise, levels[: index + 1], 0)[index]
        leading = self._teaching(teacher, tokens)
        without = None
        if plan.guidance != 1.0:
            without = self._teaching(teacher, without_prompt(tokens, 1.0, draw))
        wanted = follow_flow(leading, begun, self._way(levels[index]), 0, without, plan.guidance)
        level = torch.full((len(begun), 1), levels[index], device=begun.device)
        flow = flows_of(student, batch.groups, batch.latents, begun[:, None], level, text)
        return (clean_of(begun, flow[:, 0], level[:, 0]) - wanted).square().mean()

    def _teaching(self, teacher: Networks, tokens: Tensor) -> Stream:
        text = text_keys_values(teacher.transformer, teacher.embeds(tokens))
        return Stream(teacher, self._sizes.stream, text)

    def _way(self, level: float) -> list[float]:
        """Levels from one down to 0, evenly in the sampler's time."""
        if self._batches.flow_steps == 1:
            return [level, 0.0]
        shift = self._sizes.config.sampler.shift
        share = level / (shift - (shift - 1) * level)
        count = max(2, round(self._batches.flow_steps * share))
        way: list[float] = shifted(torch.linspace(share, 0, count + 1), shift).tolist()
        return [level, *way[1:]]


def run(
    options: Options,
    sizes: Sizes,
    vae_folder: Path,
    flow_folder: Path,
    plan: Plan,
    batches: Batches,
) -> None:
    """Trains and prints a table."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    vae, statistics = load_vae(vae_folder, sizes, options.device)
    # Numbers that the flow was not trained on: those of another seed.
    shelves = Shelves(Encoder(sizes, vae, statistics, options.device), plan, options.seed + 1)
    modules = load_trained(flow_folder, sizes, options.device)
    fixed = load_trained(flow_folder, sizes, options.device).requires_grad_(False)
    student = networks_of(modules, sizes, plan.farthest, options)
    teacher = networks_of(fixed, sizes, 1, options)
    teacher = replace(teacher, transformer=frozen(teacher.transformer, options.device))
    loss = FewStepLoss(student, teacher, shelves, sizes, batches, options)
    facts = {"part": "few", "mean": statistics.mean, "std": statistics.std}
    steps = train(options, modules, loss, facts, shelves.prepare)
    print(log.table(log.read(options.out / "log.jsonl")))
    print(f"{steps} steps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=3e-4)
    add_plan(parser)
    parser.add_argument("--flow", type=Path, required=True, help="what train_flow left")
    parser.add_argument("--clips", type=int, default=Batches.clips)
    parser.add_argument("--starts", type=int, default=Batches.starts)
    parser.add_argument("--flow-steps", type=int, default=Batches.flow_steps)
    parser.add_argument("--guidance", type=float, default=Batches.guidance)
    parser.set_defaults(shelf_blocks=8)
    arguments = parser.parse_args()
    names = ("clips", "starts", "flow_steps", "guidance")
    batches = Batches(**{name: getattr(arguments, name) for name in names})
    sizes = demo_sizes(arguments.preset)
    options, plan = options_of(arguments), plan_of(arguments)
    run(options, sizes, arguments.vae, arguments.flow, plan, batches)


if __name__ == "__main__":
    main()
