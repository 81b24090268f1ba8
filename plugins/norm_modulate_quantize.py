"""Operator ``norm_modulate_quantize``: what goes into a layer's projections."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, Checks
from vidc.plugins.definition import define
from vidc.plugins.quantize import to_output

_CHECKS = Checks("norm_modulate_quantize")


def norm_modulate_quantize_reference(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    eps: float,
    dtype: str,
    output_scale: Tensor | None = None,
) -> Tensor:
    """``layer_norm(x) * (1 + scale) + shift``, the norm without weights.

    Computed in float32 and rounded once, to the output's dtype.

    Args:
        x: ``[B, T, width]``, float32, bfloat16 or float16; the width a multiple of 8 up to 8192.
        shift: float32 ``[B, F, width]``: latent frame ``f`` has tokens ``f T / F`` and on.
        scale: the same.
        eps: added to the variance.
        dtype: of the output, by its name: float32, bfloat16, float16, or float8_e4m3fn.
        output_scale: float32 ``[1]`` for FP8, whose values are the result divided by it; else None.

    Returns:
        ``[B, T, width]`` of ``dtype``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check(x, shift, scale, dtype, output_scale)
    normed = F.layer_norm(x.float(), x.shape[-1:], None, None, eps)
    frames = normed.reshape(x.shape[0], shift.shape[1], -1, x.shape[2])
    modulated = (frames * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)
    return to_output(modulated, to, output_scale)


def _fake(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    eps: float,
    dtype: str,
    output_scale: Tensor | None = None,
) -> Tensor:
    to = _check(x, shift, scale, dtype, output_scale)
    return torch.empty_like(x, dtype=to, memory_format=torch.contiguous_format)


def _check(
    x: Tensor, shift: Tensor, scale: Tensor, dtype: str, output_scale: Tensor | None
) -> torch.dtype:
    _CHECKS.shape("x", x, ("B", "T", "width"))
    _CHECKS.dtype("x", x, FLOATS)
    _CHECKS.width("x", x.shape[2])
    _CHECKS.frames("shift", shift, x.shape)
    _CHECKS.shape("scale", scale, shift.shape)
    _CHECKS.dtype("scale", scale, (torch.float32,))
    return _CHECKS.output(dtype, output_scale)


norm_modulate_quantize = define(
    "norm_modulate_quantize(Tensor x, Tensor shift, Tensor scale, float eps, str dtype,"
    " Tensor? output_scale=None) -> Tensor",
    norm_modulate_quantize_reference,
    _fake,
)
