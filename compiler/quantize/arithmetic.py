"""Scales of symmetric quantization, and SmoothQuant's factors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vidc.plugins import quantize

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Dtype by format."""
LARGEST = {fmt: quantize.LARGEST[dtype] for fmt, dtype in DTYPES.items()}
"""Largest magnitude by format."""

CONVOLUTION = 4
"""Dimensions of a 2D convolution's weight."""


def scale_of(amax: Tensor, fmt: str) -> Tensor:
    """Returns the scale that maps ``amax`` to the format's largest magnitude; 1 if it is zero."""
    return torch.where(amax > 0, amax / LARGEST[fmt], torch.ones_like(amax))


def as_rows(weight: Tensor) -> Tensor:
    """Returns a weight as the matrix of a matmul, ``[out, in]``.

    The weight of a convolution, ``[out, in, kh, kw]``, becomes ``[out, kh * kw * in]``: each row
    multiplies a flattened patch of the input, whose channels come last.
    """
    return weight.permute(0, 2, 3, 1).flatten(1) if weight.ndim == CONVOLUTION else weight


def smoothing(inputs: Tensor, weights: Sequence[Tensor], alpha: float) -> Tensor:
    """Returns SmoothQuant's factors, ``[in]``, which divide inputs and multiply weights.

    See https://arxiv.org/abs/2211.10438, equation 4. The factor of an all-zero channel is 1.

    Args:
        inputs: amax of each input channel, ``[in]``.
        weights: weights of the linear layers with this input, each ``[out, in]``.
        alpha: migration strength: share of the inputs' range that moves to the weights.
    """
    columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).float()
    factors = inputs.pow(alpha) / columns.pow(1 - alpha)
    usable = (inputs > 0) & (columns > 0) & factors.isfinite() & (factors > 0)
    return torch.where(usable, factors, torch.ones_like(factors))
