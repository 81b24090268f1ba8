"""Weights for a TAEHV without a checkpoint: frames fill the range of pixels."""

import math
from collections.abc import Sequence

from torch import Tensor

from vidc.exporters.draw import draw

_AFTER_RELU = math.sqrt(2)
"""Restores the scale of a unit normal that went through a ReLU."""
_LAST = "decoder.22"


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws one weight, float32; it depends on the seed and its own name alone."""
    noise = draw(name, shape, seed)
    if name == f"{_LAST}.bias":
        return 0.5 + 0.05 * noise  # The middle of the range of pixels.
    if len(shape) == 1:
        return 0.1 * noise
    return noise * (_gain(name) / math.sqrt(math.prod(shape[1:])))


def _gain(name: str) -> float:
    """Standard deviation of a layer's output for an input of unit variance."""
    if name == f"{_LAST}.weight":
        return 0.2 * _AFTER_RELU
    if name.endswith("conv.2.weight"):
        return _AFTER_RELU
    # The last convolution of a block adds to its input, which would else grow from block to block.
    return 0.7 if name.endswith("conv.4.weight") else 1.0
