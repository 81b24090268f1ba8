"""Random weights for networks of residual blocks over video frames."""

import math
from collections.abc import Sequence

from torch import Tensor

from vidc.exporters.draw import draw


def random_weight(name: str, shape: Sequence[int], seed: int, gain: float) -> Tensor:
    """Draws one weight, float32; it depends on the seed and its own name alone.

    Args:
        name: its name.
        shape: its shape.
        seed: seed of the draw.
        gain: standard deviation of a layer's output for a unit normal input, if it is a weight of
            a matmul or a convolution.
    """
    noise = draw(name, shape, seed)
    *_, layer, kind = name.rsplit(".", 2)
    if kind == "mix_factor":
        return noise
    if "norm" in layer and kind == "weight":
        return 1 + 0.1 * noise
    if len(shape) == 1:
        return 0.1 * noise
    return noise * (gain / math.sqrt(math.prod(shape[1:])))
