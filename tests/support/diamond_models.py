"""Small DIAMOND models: the oracle's and vidc's of the same sizes and weights."""

from dataclasses import dataclass, replace
from pathlib import Path

import diamond_oracle as oracle
import torch
from torch import Tensor, nn

from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import part_engines, player
from vidc.exporters.families.world import World
from vidc.exporters.models import with_weights

TABLES = {
    "denoiser": {
        "channels": [32, 64], "depths": [1, 2], "attention": [False, True], "cond": 32, "past": 4,
        "actions": 5,
    },
    "upsampler": {
        "channels": [32, 32], "depths": [1, 1], "attention": [False, False], "cond": 16,
        "factor": 3,
    },
    "frames": {"height": 9, "width": 14},
    "denoise": {"s_cond": 0.005},
    "upsample": {
        "order": 2, "sigma_min": 1.0, "s_churn": 10.0, "s_tmin": 1.0, "s_tmax": 5.0, "s_noise": 0.9,
    },
}  # fmt: skip
HIGHER_QUALITY = {
    "denoise": TABLES["denoise"] | {"steps": 3},
    "upsample": TABLES["upsample"] | {"steps": 10, "order": 1},
}
HEUN = {
    "denoise": TABLES["denoise"] | {"steps": 3, "order": 2},
    "upsample": TABLES["upsample"] | {"steps": 2},
}
ATARI = {
    "denoiser": TABLES["denoiser"] | {"one_hot": True, "noised_past": False, "sigma_offset": 0.3},
    "upsampler": {},
    "denoise": {"steps": 3},
    "upsample": {},
}


def net_of(config) -> oracle.Net:
    return oracle.Net(
        [*config.channels], [*config.depths], [*config.attention], config.cond, config.past,
        config.sigma_offset, noise_cond=getattr(config, "noised_past", True),
    )  # fmt: skip


def steps_of(config) -> oracle.Steps:
    return oracle.Steps(
        config.steps, config.order, config.sigma_min, config.sigma_max, config.s_churn,
        config.s_tmin, config.s_tmax, config.s_noise, config.s_cond,
    )  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A model of the family, and the oracle with the same weights."""

    model: World
    agent: nn.Module

    @property
    def player(self) -> Player:
        """Plays the model's engines in PyTorch."""
        return player(self.model, self.engines, torch.device("cpu"))

    @property
    def engines(self):
        """Engines of the model's components in PyTorch."""
        part = self.model.part
        return part_engines(part, with_weights(part.network("fp32"), self.weights))

    @property
    def weights(self) -> dict[str, Tensor]:
        """The oracle's weights under the part's names."""
        from vidc.exporters.checkpoint.lazy import LazyTensor
        from vidc.exporters.parts.diamond_unet.names import fuse

        tensors = {n: LazyTensor.of(t) for n, t in self.agent.state_dict().items()}
        fused = fuse(self.model.part.network("fp32"), tensors)
        return {name: tensor.load() for name, tensor in fused.items()}

    def world(self, start, draw=None) -> oracle.World:
        """Returns the oracle's world in a state ``(low, full, actions)``."""
        steps = (steps_of(self.model.denoise), steps_of(self.model.upsample))
        copies = (tensor.clone() for tensor in start)
        return oracle.World(self.agent, steps, self.model.upsampler.factor, *copies, draw)

    def save(self, folder: Path, name: str = "csgo.pt") -> Path:
        """Writes the oracle's weights as a download has them."""
        path = folder / "model" / name
        path.parent.mkdir(parents=True)
        torch.save(self.agent.state_dict(), path)
        return path


def pair(seed: int = 0, **tables) -> Pair:
    """Returns a model of ``TABLES``, with some replaced, and the oracle of it."""
    model = World.from_tables(TABLES | tables)
    upsampler = net_of(model.upsampler) if model.upsampler.factor > 1 else None
    config = model.denoiser
    return Pair(model, oracle.agent(net_of(config), upsampler, config.actions, seed))


def resized(made: Pair, **frames) -> Pair:
    """Returns the same weights at another size of frames."""
    return replace(made, model=replace(made.model, frames=replace(made.model.frames, **frames)))


def start_of(model: World, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Draws a state: low-resolution frames, frames and actions."""
    generator = torch.Generator().manual_seed(seed)
    h, w, factor = model.frames.height, model.frames.width, model.upsampler.factor
    past = model.denoiser.past

    def pixels(count, height, width):
        drawn = torch.randint(256, (count, 3, height, width), generator=generator)
        return drawn.to(torch.uint8) / 255 * 2 - 1

    low, full = pixels(past, h, w), pixels(1, factor * h, factor * w)
    return low, full, actions_of(model, past, seed)


def actions_of(model: World, count: int, seed: int = 1) -> Tensor:
    """Draws actions, float32 ``[count, inputs]``."""
    generator = torch.Generator().manual_seed(100 + seed)
    drawn = torch.rand(count, model.denoiser.actions, generator=generator)
    if model.denoiser.one_hot:
        return torch.nn.functional.one_hot(drawn.argmax(-1), drawn.shape[-1]).float()
    return (drawn > 0.6).float()
