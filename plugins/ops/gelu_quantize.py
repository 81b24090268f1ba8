"""Operator ``gelu_quantize``: the feed-forward's activation."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, VECTOR, Checks
from vidc.plugins.definition import define
from vidc.plugins.quantize import to_output

_CHECKS = Checks("gelu_quantize")


def gelu_quantize_reference(
    x: Tensor, dtype: str, output_scale: Tensor | None = None, output_mean: Tensor | None = None
) -> Tensor:
    """Returns GELU (tanh approximation), computed in float32 and rounded once to ``dtype``.

    Args:
        x: ``[B, T, width]``, float32, bfloat16 or float16; the width a multiple of 8.
        dtype: output dtype: float32, bfloat16, float16 or float8_e4m3fn.
        output_scale: float32 ``[1]`` that divides an FP8 result; None for other dtypes.
        output_mean: float32 ``[width]``, subtracted from an FP8 result before that; or None.

    Returns:
        ``[B, T, width]`` of ``dtype``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check(x, dtype, output_scale, output_mean)
    result = F.gelu(x.float(), approximate="tanh")
    return to_output(result if output_mean is None else result - output_mean, to, output_scale)


def _fake(
    x: Tensor, dtype: str, output_scale: Tensor | None = None, output_mean: Tensor | None = None
) -> Tensor:
    to = _check(x, dtype, output_scale, output_mean)
    return torch.empty_like(x, dtype=to, memory_format=torch.contiguous_format)


def _check(
    x: Tensor, dtype: str, output_scale: Tensor | None, output_mean: Tensor | None
) -> torch.dtype:
    _CHECKS.shape("x", x, ("B", "T", "width"))
    _CHECKS.dtype("x", x, FLOATS)
    width = x.shape[2]
    _CHECKS.that(width % VECTOR == 0, "x", f"a width that is a multiple of {VECTOR}", width)
    to = _CHECKS.output(dtype, output_scale)
    if output_mean is not None:
        _CHECKS.that(output_scale is not None, "output_mean", f"none for {dtype}", "a tensor")
        _CHECKS.shape("output_mean", output_mean, (width,))
        _CHECKS.dtype("output_mean", output_mean, (torch.float32,))
    return to


gelu_quantize = define(
    "gelu_quantize(Tensor x, str dtype, Tensor? output_scale=None,"
    " Tensor? output_mean=None) -> Tensor",
    gelu_quantize_reference,
    _fake,
)
