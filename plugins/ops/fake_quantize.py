"""Operator ``fake_quantize``: quantizes and dequantizes queries, per token and head.

A backend with 8-bit attention quantizes the queries in its place; it has no kernel of its own.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks, dtype_name
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import LARGEST, quantize, row_scale

_CHECKS = Checks("fake_quantize")
_FORMATS = {dtype_name(dtype): dtype for dtype in LARGEST}


def fake_quantize_reference(x: Tensor, dtype: str) -> Tensor:
    """Returns the nearest 8-bit numbers, times a scale from the amax of each token and head.

    Args:
        x: ``[B, T, H, D]``, float32, bfloat16 or float16.
        dtype: 8-bit dtype: float8_e4m3fn or int8.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check(x, dtype)
    scale = row_scale(x.float(), to)
    return (quantize(x.float(), scale, to).float() * scale).to(x.dtype)


def _fake(x: Tensor, dtype: str) -> Tensor:
    _check(x, dtype)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(x: Tensor, dtype: str) -> torch.dtype:
    _CHECKS.shape("x", x, ("B", "T", "H", "D"))
    _CHECKS.dtype("x", x, FLOATS)
    _CHECKS.that(dtype in _FORMATS, "dtype", " or ".join(_FORMATS), dtype)
    return _FORMATS[dtype]


fake_quantize = define_composite(
    "fake_quantize(Tensor x, str dtype) -> Tensor", fake_quantize_reference, _fake
)
