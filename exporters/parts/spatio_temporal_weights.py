"""Random weights for networks of residual blocks over video frames."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.draw import draw

AFTER_SILU = 1.68
"""Restores the scale of a unit normal that went through SiLU: E[silu(x)^2] is 0.355."""


def random_weights(
    shapes: Mapping[str, Sequence[int]], seed: int, gain: Callable[[str], float]
) -> dict[str, LazyTensor]:
    """Draws float32 weights, each when it is loaded, from the seed and its own name alone.

    Args:
        shapes: by name.
        seed: of the draw.
        gain: standard deviation of a layer's output for a unit normal input, by its weight's name.
    """
    return {
        name: LazyTensor(tuple(shape), torch.float32, partial(_weight, name, shape, seed, gain))
        for name, shape in shapes.items()
    }


def _weight(name: str, shape: Sequence[int], seed: int, gain: Callable[[str], float]) -> Tensor:
    noise = draw(name, shape, seed)
    *_, layer, kind = name.rsplit(".", 2)
    if kind == "mix_factor":
        return noise
    if "norm" in layer and kind == "weight":
        return 1 + 0.1 * noise
    if len(shape) == 1:
        return 0.1 * noise
    return noise * (gain(name) / math.sqrt(math.prod(shape[1:])))
