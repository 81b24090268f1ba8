"""Quantization to 8 bits in plain PyTorch: the one definition of rounding.

A value is ``quantized * scale``. Quantizing divides by the scale, as ONNX does, rounds to nearest
even, and saturates at the largest number. Kernels multiply by the inverse of the scale instead, so
a value close to the middle between two 8-bit numbers may round to the other number there.
"""

import torch
from torch import Tensor

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
"""Largest number of each 8-bit dtype; INT8 leaves out -128 to be symmetric."""

_LEAST = 1e-30
"""Lower limit of a row's amax: it keeps the inverse of the scale finite."""


def quantize(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantizes float32 by scales that broadcast against it.

    Args:
        x: float32.
        scale: float32, positive.
        dtype: ``float8_e4m3fn`` or ``int8``.
    """
    largest = LARGEST[dtype]
    scaled = (x / scale).clamp(-largest, largest)
    return (scaled.round() if dtype is torch.int8 else scaled).to(dtype)


def row_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the scale of each row of float32 ``[..., D]`` from its amax, float32 ``[..., 1]``."""
    return x.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / LARGEST[dtype]


def quantize_heads(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantizes float32 ``[B, T, H, D]`` per token and head; also returns scales ``[B, H, T]``."""
    scale = row_scale(x, dtype)
    return quantize(x, scale, dtype), scale.squeeze(-1).transpose(1, 2).contiguous()


def to_output(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Rounds float32 once to an output dtype, which is FP8 if there is a scale."""
    return x.to(dtype) if scale is None else quantize(x, scale, dtype)
