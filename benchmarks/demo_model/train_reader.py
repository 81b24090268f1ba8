"""Trains what reads objects' shapes and directions off latents, for ``train_following.py``.

    PYTHONPATH=benchmarks python -m demo_model.train_reader --vae out/demo/vae \\
        --out out/demo/reader --minutes 3 --finish

It sees first blocks and blocks from anywhere in a clip, with some noise on them: latents that a
model made are near those of clips, not among them.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from demo_model.train_flow import add_plan, plan_of
from demo_model.train_vae import load_vae
from demo_model.training import checkpoint, log
from demo_model.training.batches import draw_batch
from demo_model.training.clips import numbered
from demo_model.training.loop import Options, add_options, generator, options_of, precision, train
from demo_model.training.networks import Sizes, demo_sizes
from demo_model.training.reader import Reader, attributes_of, reading_loss
from demo_model.training.shelves import Encoder, Plan, Shelves

NOISE = 0.5
"""Most deviation of the noise on latents, of deviation 1."""

UNSEEN = 512
"""First blocks that the reader is measured on, of numbers no shelf has."""


def new_reader(sizes: Sizes) -> Reader:
    """A reader to train, float32."""
    return Reader(sizes.stream.block, sizes.config.vae.z_dim)


def load_reader(folder: Path, sizes: Sizes, device: str) -> Reader:
    """The mean weights of a trained reader, frozen.

    Raises:
        FileNotFoundError: the folder has no checkpoint.
    """
    reader = new_reader(sizes)
    reader.load_state_dict(checkpoint.trained(folder / "checkpoint")[0])
    return reader.to(device).eval().requires_grad_(False)


def disturbed(latents: Tensor, draw: torch.Generator) -> Tensor:
    """Latents ``[N, F, C, h, w]`` with noise of a deviation of their own each."""
    shares = torch.rand(len(latents), generator=draw, device=draw.device)
    noise = torch.randn(latents.shape, generator=draw, device=draw.device)
    return latents + NOISE * shares.view(-1, 1, 1, 1, 1) * noise


class ReaderLoss:
    """The loss of a step: first blocks, and a block of each of some clips."""

    def __init__(
        self, reader: Reader, shelves: Shelves, counts: tuple[int, int], options: Options
    ) -> None:
        self._reader = reader
        self._shelves = shelves
        self._counts = counts
        self._options = options

    def __call__(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss, its parts and how many shapes were read right."""
        draw = generator(self._options.seed, step, 3, self._options.device)
        clips, starts = self._counts
        first = draw_batch(self._shelves.starts(step), starts, draw)
        later = draw_batch(self._shelves.clips(step), clips, draw)
        latents = torch.cat([first.latents[:, 0], later.latents.flatten(0, 1)])
        wanted = torch.cat([first.attributes[:, 0], later.attributes.flatten(0, 1)])
        with precision(self._options.device):
            *losses, right = reading_loss(self._reader, disturbed(latents, draw), wanted)
        shape, direction = (loss.mean() for loss in losses)
        return shape + direction, {"shape": shape, "direction": direction, "right": right}


def run(
    options: Options,
    sizes: Sizes,
    vae_folder: Path,
    plan: Plan,
    counts: tuple[int, int],
    unseen: int = UNSEEN,
) -> None:
    """Trains, measures and prints a table."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    vae, statistics = load_vae(vae_folder, sizes, options.device)
    encoder = Encoder(sizes, vae, statistics, options.device)
    shelves = Shelves(encoder, plan, options.seed + 2)
    reader = new_reader(sizes).to(options.device)
    loss = ReaderLoss(reader, shelves, counts, options)
    steps = train(options, reader, loss, {"part": "reader"}, shelves.prepare)
    print(log.table(log.read(options.out / "log.jsonl")))
    trained = load_reader(options.out, sizes, options.device)
    prompted = numbered(2**30, unseen)
    latents, _ = encoder.blocks(prompted, 0, 1)
    wanted = attributes_of([clip.scenes[0][1] for clip in prompted.clips]).to(options.device)
    with torch.no_grad():
        shape, direction, right = reading_loss(trained, latents[:, 0].float(), wanted)
    print(f"{steps} steps; clips not trained on: shape {shape.mean():.3f} nats, {right:.1%} right,")
    print(f"direction {direction.mean():.3f} nats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=1e-3)
    add_plan(parser)
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--starts", type=int, default=512)
    arguments = parser.parse_args()
    counts = (arguments.clips, arguments.starts)
    sizes = demo_sizes(arguments.preset)
    run(options_of(arguments), sizes, arguments.vae, plan_of(arguments), counts)


if __name__ == "__main__":
    main()
