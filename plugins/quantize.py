"""How operators round to 8 bits, in plain PyTorch.

A value is ``quantized * scale``. Quantizing multiplies by ``1 / scale``, rounded once to float32 as
kernels do it, rounds to nearest even, and keeps what is too large at the largest number.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""By 8-bit dtype; INT8 leaves out -128, so that it is symmetric."""

_LEAST = 1e-30
"""Taken for a row's largest value where that is less: the scale's inverse has to be finite."""


def quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantizes float32 by scales that broadcast against it.

    Args:
        x: float32.
        scale: float32, positive.
        dtype: ``float8_e4m3fn`` or ``int8``.
    """
    largest = LARGEST[dtype]
    scaled = (x * scale.reciprocal()).clamp(-largest, largest)
    return (scaled.round() if dtype is torch.int8 else scaled).to(dtype)


def row_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales that follow from the largest value of each row of float32 ``[..., D]``.

    Returns:
        Float32 ``[..., 1]``.
    """
    return x.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / LARGEST[dtype]


def quantize_heads(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Float32 ``[B, T, H, D]`` by a scale for each token and head, and these, ``[B, H, T]``."""
    scale = row_scale(x, dtype)
    return quantize(x, scale, dtype), scale.squeeze(-1).transpose(1, 2).contiguous()


def to_output(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Float32 as the output of an operator: rounded once, to FP8 where there is a scale."""
    return x.to(dtype) if scale is None else quantize(x, scale, dtype)
