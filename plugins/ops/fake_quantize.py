"""Operator ``fake_quantize``: quantizes and dequantizes keys, values or queries.

It marks the place in a program where a backend puts an 8-bit ring; it has no kernel of its own.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks, dtype_name
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import LARGEST, quantize, row_scale

_CHECKS = Checks("fake_quantize")
_FORMATS = {dtype_name(dtype): dtype for dtype in LARGEST}


def fake_quantize_reference(
    x: Tensor, scale: Tensor | None, mean: Tensor | None, dtype: str
) -> Tensor:
    """Returns the nearest 8-bit numbers, times their scale.

    Args:
        x: ``[B, T, H, D]``, float32, bfloat16 or float16.
        scale: per head, float32 ``[H]``; None for a scale per token and head, from its amax.
        mean: float32 ``[H, D]``, subtracted before and added after; None for zeros.
        dtype: 8-bit dtype: float8_e4m3fn or int8.

    Returns:
        A tensor of the shape and dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check(x, scale, mean, dtype)
    values = x.float() if mean is None else x.float() - mean
    by = row_scale(values, to) if scale is None else scale[:, None]
    values = quantize(values, by, to).float() * by
    return (values if mean is None else values + mean).to(x.dtype)


def _fake(x: Tensor, scale: Tensor | None, mean: Tensor | None, dtype: str) -> Tensor:
    _check(x, scale, mean, dtype)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(x: Tensor, scale: Tensor | None, mean: Tensor | None, dtype: str) -> torch.dtype:
    _CHECKS.shape("x", x, ("B", "T", "H", "D"))
    _CHECKS.dtype("x", x, FLOATS)
    for name, tensor, shape in (("scale", scale, x.shape[2:3]), ("mean", mean, x.shape[2:])):
        if tensor is not None:
            _CHECKS.shape(name, tensor, shape)
            _CHECKS.dtype(name, tensor, (torch.float32,))
    _CHECKS.that(dtype in _FORMATS, "dtype", " or ".join(_FORMATS), dtype)
    return _FORMATS[dtype]


fake_quantize = define_composite(
    "fake_quantize(Tensor x, Tensor? scale, Tensor? mean, str dtype) -> Tensor",
    fake_quantize_reference,
    _fake,
)
