"""The numbers of quantization: symmetric, with static scales, rounded half to even."""

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
"""The dtype of a format's values."""
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The largest magnitude of a format; INT8's -128 is left out, so that zero is the middle."""


def scale_of(amax: Tensor, form: str) -> Tensor:
    """The scale with which ``amax`` becomes the format's largest magnitude; 1 where it is zero."""
    return torch.where(amax > 0, amax / LARGEST[form], torch.ones_like(amax))


def quantize(values: Tensor, scale: Tensor, form: str) -> Tensor:
    """Values in a format: nearest, ties to even, those out of range to the largest magnitude.

    Args:
        values: any shape.
        scale: of a shape that broadcasts to it.
        form: ``int8`` or ``fp8``.
    """
    largest = LARGEST[form]
    steps = (values.float() / scale.float()).clamp(-largest, largest)
    return (steps.round() if form == "int8" else steps).to(DTYPES[form])


def smoothing(inputs: Tensor, weights: Sequence[Tensor], alpha: float) -> Tensor:
    """SmoothQuant's factors, by which inputs are divided and weights multiplied.

    After https://arxiv.org/abs/2211.10438, equation 4; 1 for a channel that is always zero.

    Args:
        inputs: the largest magnitude of each input channel, ``[in]``.
        weights: of the Linears that read them, each ``[out, in]``.
        alpha: the share of the inputs' range that moves into the weights.
    """
    columns = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).float()
    factors = inputs.pow(alpha) / columns.pow(1 - alpha)
    usable = (inputs > 0) & (columns > 0) & factors.isfinite() & (factors > 0)
    return torch.where(usable, factors, torch.ones_like(factors))
