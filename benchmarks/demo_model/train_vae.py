"""Trains the demo model's VAE.

    PYTHONPATH=benchmarks python -m demo_model.train_vae --out out/demo/vae --minutes 10
    PYTHONPATH=benchmarks python -m demo_model.train_vae --out out/demo/vae --minutes 10 --finish

Clips of 5 frames at first, three times as many, because textures stand still and more of them teach
more; then clips of 17. The last thing a run does is to measure the latents' mean and deviation.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_model.render import render
from demo_model.training import checkpoint, log
from demo_model.training.clips import for_vae
from demo_model.training.loop import Options, add_options, generator, options_of, precision, train
from demo_model.training.networks import PRESET, Sizes, demo_sizes, new_vae
from demo_model.training.vae import Posterior, Statistics, decode, encode
from demo_model.training.vae_loss import Weights, psnr, reconstruction

STATISTICS = "latents.json"
MEASURED_FROM = 2**20
"""Steps from here on are none of a training's: their clips measure the latents."""


@dataclass(frozen=True)
class Plan:
    """How much a step sees.

    Attributes:
        batch: clips of a step in the long stretch.
        short_steps: steps with clips of two latent frames, and three times as many.
        latents: latent frames of a clip later on.
    """

    batch: int = 16
    short_steps: int = 1000
    latents: int = 5

    def of(self, step: int) -> tuple[int, int]:
        """Clips and latent frames of a step."""
        return (3 * self.batch, 2) if step < self.short_steps else (self.batch, self.latents)


class VaeLoss:
    """The loss of a step; see ``vae_loss``."""

    def __init__(self, sizes: Sizes, vae: nn.Module, plan: Plan, options: Options) -> None:
        self._sizes = sizes
        self._vae = vae
        self._plan = plan
        self._options = options
        self._weights = Weights()

    def __call__(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss, and its parts."""
        device = self._options.device
        frames = self.frames(step, *self._plan.of(step))
        with precision(device):
            posterior = encode(self._vae, frames, self._sizes.config.vae)
            draw = generator(self._options.seed, step, 0, device)
            noise = torch.randn(posterior.mean.shape, generator=draw, device=device)
            made = decode(self._vae, posterior.sample(noise))
        loss, square = reconstruction(made, frames, self._weights)
        divergence = posterior.divergence()
        total = loss + self._weights.divergence * divergence
        return total, {"square": square, "divergence": divergence}

    def frames(self, step: int, batch: int, latents: int) -> Tensor:
        """Clips of a step, ``[B, 3, T, H, W]``."""
        prompted, first, frames = for_vae(step, batch, latents, self._options.seed)
        stream = self._sizes.config.stream
        return render(
            prompted.clips, frames, height=stream.height, width=stream.width, first=first,
            device=self._options.device,
        )  # fmt: skip

    @torch.no_grad()
    def measure(self, batches: int) -> tuple[Statistics, float]:
        """Statistics of the latents, and PSNR of what posterior means decode to."""
        means, squares = [], []
        for index in range(batches):
            frames = self.frames(MEASURED_FROM + index, self._plan.batch, self._plan.latents)
            with precision(self._options.device):
                posterior: Posterior = encode(self._vae, frames, self._sizes.config.vae)
                made = decode(self._vae, posterior.mean)
            means.append(posterior.mean)
            squares.append((made.clamp(-1, 1) - frames).square().mean())
        return Statistics.of(torch.cat(means)), psnr(float(torch.stack(squares).mean()))


def run(options: Options, sizes: Sizes, plan: Plan, batches: int = 16) -> None:
    """Trains, measures, and prints a table."""
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = True
    vae = new_vae(sizes).to(options.device)
    loss = VaeLoss(sizes, vae, plan, options)
    steps = train(options, vae, loss, {"part": "vae"})
    weights, _ = checkpoint.trained(options.out / "checkpoint")
    vae.load_state_dict(weights)
    statistics, decibels = loss.measure(batches)
    document = {"steps": steps, "psnr": decibels, **vars(statistics)}
    (options.out / STATISTICS).write_text(json.dumps(document, indent=1) + "\n")
    rows = log.read(options.out / "log.jsonl")
    print(log.table([{**row, "psnr": psnr(row["square"])} for row in rows]))
    print(f"{steps} steps; mean weights: {decibels:.2f} dB on clips of this split not trained on")


def load_vae(folder: Path, sizes: Sizes, device: str) -> tuple[nn.Module, Statistics]:
    """What ``run`` left in its folder: the mean weights, frozen, and the latents' statistics.

    Raises:
        FileNotFoundError: the folder holds none.
    """
    weights, _ = checkpoint.trained(folder / "checkpoint")
    vae = new_vae(sizes)
    vae.load_state_dict(weights)
    document = json.loads((folder / STATISTICS).read_text())
    statistics = Statistics(tuple(document["mean"]), tuple(document["std"]))
    return vae.to(device).eval().requires_grad_(False), statistics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=2e-3)
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--batch", type=int, default=Plan.batch)
    parser.add_argument("--short-steps", type=int, default=Plan.short_steps)
    parser.add_argument("--latents", type=int, default=Plan.latents)
    arguments = parser.parse_args()
    plan = Plan(arguments.batch, arguments.short_steps, arguments.latents)
    run(options_of(arguments), demo_sizes(arguments.preset), plan)


if __name__ == "__main__":
    main()
