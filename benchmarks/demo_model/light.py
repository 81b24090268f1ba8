"""Light that changes, bounded and periodic, so that a clip looks alike for ever."""

import math
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from demo_model.attributes import Light
from demo_model.palette import Rgb

PERIOD = 60
"""Frames. Five blocks of 12: blocks 5 and 100 of a stream are under the same light."""

SWING: Mapping[Light, Rgb] = MappingProxyType(
    {
        Light.STEADY: (0.0, 0.0, 0.0),
        Light.PULSING: (0.08, 0.08, 0.08),
        Light.SWEEPING: (0.08, 0.08, 0.08),
        Light.SHIFTING: (0.08, 0.0, -0.08),
    }
)
"""Of each channel, as a share of it. Small, since two phases must not differ like two videos."""


def gains(
    lights: Sequence[Light], seeds: Sequence[int], first: int, frames: int, width: int
) -> Tensor:
    """What pixels are multiplied by, float32 ``[B, T, 1, W, 3]``; a sweep goes to the right."""
    phases = [random.Random(f"light {seed}").random() for seed in seeds]
    phase = torch.tensor(phases)[:, None, None]
    swing = torch.tensor([SWING[light] for light in lights])[:, None, None, :]
    sweeps = torch.tensor([light is Light.SWEEPING for light in lights])[:, None, None]
    t = torch.arange(first, first + frames)[None, :, None] % PERIOD / PERIOD
    x = torch.arange(width)[None, None, :] / width
    wave = torch.sin(2 * math.pi * (t + phase - x * sweeps))
    return (1 + wave[..., None] * swing).unsqueeze(2)
