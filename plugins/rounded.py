"""Operator ``rounded``: keys, values or queries as 8 bits hold them.

It keeps the place in a program where a backend puts a ring of 8 bits: no kernel is its own.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks, dtype_name
from vidc.plugins.quantize import LARGEST, quantize, row_scale

_CHECKS = Checks("rounded")
_FORMATS = {dtype_name(dtype): dtype for dtype in LARGEST}


def rounded_reference(x: Tensor, scale: Tensor | None, mean: Tensor | None, dtype: str) -> Tensor:
    """The nearest numbers of 8 bits, times their scale.

    Args:
        x: ``[B, T, H, D]``, float32, bfloat16 or float16.
        scale: of each head, float32 ``[H]``; None for one that follows from the largest of each
            token and head.
        mean: float32 ``[H, D]``, taken off before and added behind; None for zeros.
        dtype: of the numbers: float8_e4m3fn or int8.

    Returns:
        Of the shape and dtype of ``x``.

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
    for name, given, shape in (("scale", scale, x.shape[2:3]), ("mean", mean, x.shape[2:])):
        if given is not None:
            _CHECKS.shape(name, given, shape)
            _CHECKS.dtype(name, given, (torch.float32,))
    _CHECKS.that(dtype in _FORMATS, "dtype", " or ".join(_FORMATS), dtype)
    return _FORMATS[dtype]


LIBRARY = torch.library.Library("vidc", "FRAGMENT")
LIBRARY.define("rounded(Tensor x, Tensor? scale, Tensor? mean, str dtype) -> Tensor")
LIBRARY.impl("rounded", rounded_reference, "CompositeExplicitAutograd")
torch.library.register_fake("vidc::rounded", _fake, lib=LIBRARY)
rounded = torch.ops.vidc.rounded.default
