"""Operators ``quantize_kv`` and ``dequantize_kv``: to and from the numbers in an 8-bit ring.

``dequantize_kv`` does not add the mean that ``quantize_kv`` subtracts: softmax ignores an offset
that all keys share. Neither has a kernel of its own: a backend decomposes them, or makes one kernel
of them and the operators around them.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks, dtype_name
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import LARGEST, quantize

_QUANTIZE, _DEQUANTIZE = Checks("quantize_kv"), Checks("dequantize_kv")
_FORMATS = {dtype_name(dtype): dtype for dtype in LARGEST}
_OPERANDS = ("", "keys", "values")
_OUTPUTS = {dtype_name(dtype): dtype for dtype in FLOATS}


def quantize_kv_reference(
    x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str, operand: str = ""
) -> Tensor:
    """Subtracts a mean from keys or values and quantizes the result.

    Args:
        x: ``[B, T, H, D]``, float32, bfloat16 or float16.
        scale: per head, float32 ``[H]``, positive.
        mean: float32 ``[H, D]``; None for zeros.
        dtype: 8-bit dtype: float8_e4m3fn or int8.
        operand: ``keys`` or ``values`` of attention with quantized queries, for which a backend
            may choose the ring's layout; empty if queries stay in high precision.

    Returns:
        ``[B, T, H, D]`` of ``dtype``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check_quantize(x, scale, mean, dtype, operand)
    values = x.float() if mean is None else x.float() - mean
    return quantize(values, scale[:, None], to)


def dequantize_kv_reference(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """Multiplies the numbers of an 8-bit ring by their scale.

    Args:
        x: ``[B, S, H, D]``, float8_e4m3fn or int8.
        scale: per head, float32 ``[H]``.
        dtype: output dtype: float32, bfloat16 or float16.

    Returns:
        ``[B, S, H, D]`` of ``dtype``, rounded once.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    return (x.float() * scale[:, None]).to(_check_dequantize(x, scale, dtype))


def _quantize_fake(
    x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str, operand: str = ""
) -> Tensor:
    return x.new_empty(x.shape, dtype=_check_quantize(x, scale, mean, dtype, operand))


def _dequantize_fake(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    return x.new_empty(x.shape, dtype=_check_dequantize(x, scale, dtype))


def _check_quantize(
    x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str, operand: str
) -> torch.dtype:
    _QUANTIZE.shape("x", x, ("B", "T", "H", "D"))
    _QUANTIZE.dtype("x", x, FLOATS)
    _check_scale(_QUANTIZE, x, scale)
    if mean is not None:
        _QUANTIZE.shape("mean", mean, x.shape[2:])
        _QUANTIZE.dtype("mean", mean, (torch.float32,))
    _QUANTIZE.that(dtype in _FORMATS, "dtype", " or ".join(_FORMATS), dtype)
    _QUANTIZE.that(operand in _OPERANDS, "operand", "keys, values or nothing", operand)
    return _FORMATS[dtype]


def _check_dequantize(x: Tensor, scale: Tensor, dtype: str) -> torch.dtype:
    _DEQUANTIZE.shape("x", x, ("B", "S", "H", "D"))
    _DEQUANTIZE.dtype("x", x, tuple(LARGEST))
    _check_scale(_DEQUANTIZE, x, scale)
    _DEQUANTIZE.that(dtype in _OUTPUTS, "dtype", " or ".join(_OUTPUTS), dtype)
    return _OUTPUTS[dtype]


def _check_scale(checks: Checks, x: Tensor, scale: Tensor) -> None:
    checks.shape("scale", scale, x.shape[2:3])
    checks.dtype("scale", scale, (torch.float32,))


quantize_kv = define_composite(
    'quantize_kv(Tensor x, Tensor scale, Tensor? mean, str dtype, str operand="") -> Tensor',
    quantize_kv_reference,
    _quantize_fake,
)
dequantize_kv = define_composite(
    "dequantize_kv(Tensor x, Tensor scale, str dtype) -> Tensor",
    dequantize_kv_reference,
    _dequantize_fake,
)
