"""Arithmetic of symmetric quantization, rounding half to even."""

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""Dtype by format."""
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Largest magnitude by format; -128 is unused, so that INT8 is symmetric."""


def scale_of(amax: Tensor, fmt: str) -> Tensor:
    """Returns the scale that maps ``amax`` to the format's largest magnitude; 1 if it is zero."""
    return torch.where(amax > 0, amax / LARGEST[fmt], torch.ones_like(amax))


def quantize(values: Tensor, scale: Tensor, fmt: str) -> Tensor:
    """Quantizes values with saturation.

    Args:
        values: tensor of any shape.
        scale: tensor that broadcasts to it.
        fmt: ``int8`` or ``fp8``.
    """
    largest = LARGEST[fmt]
    steps = (values.float() / scale.float()).clamp(-largest, largest)
    return (steps.round() if fmt == "int8" else steps).to(DTYPES[fmt])


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
