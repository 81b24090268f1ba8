"""Flow matching: how much noise, what is to be learnt, and what a flow says of the clean latent."""

import torch
from torch import Tensor

from vidc.exporters.families.causal_video import TRAINING_STEPS


def shifted(share: Tensor, shift: float) -> Tensor:
    """Shares of noise of the sampler's steps: ``s k / (1 + (s - 1) k)``.

    See ``SamplerConfig`` of exporters/families/causal_video.py.
    """
    return shift * share / (1 + (shift - 1) * share)


def draw_levels(count: tuple[int, ...], shift: float, draw: torch.Generator) -> Tensor:
    """Shares of noise to train at: the sampler's schedule, evenly, in strata over the whole draw.

    Strata make a step's mean loss far less a matter of which levels it happened to draw.
    """
    total = int(torch.tensor(count).prod())
    order = torch.randperm(total, generator=draw, device=draw.device)
    jitter = torch.rand(total, generator=draw, device=draw.device)
    return shifted((order + jitter) / total, shift).view(count)


def noised(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """``(1 - level) clean + level noise``; ``level`` has the leading dimensions of both."""
    level = level.view(*level.shape, *[1] * (clean.ndim - level.ndim))
    return torch.lerp(clean, noise, level)


def clean_of(noisy: Tensor, flow: Tensor, level: Tensor) -> Tensor:
    """The clean latent that a flow ``noise - clean`` points to."""
    level = level.view(*level.shape, *[1] * (noisy.ndim - level.ndim))
    return noisy - level * flow


def timesteps(level: Tensor) -> Tensor:
    """What the network is told of a share of noise."""
    return TRAINING_STEPS * level
