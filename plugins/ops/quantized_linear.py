"""Operator ``quantized_linear``: a linear layer with an 8-bit weight and, optionally, input.

It marks the place in a program where a backend puts its quantized matmul; it has no kernel.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, Checks
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import LARGEST, quantize, row_scale

_CHECKS = Checks("quantized_linear")


def quantized_linear_reference(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    input_scale: Tensor | None,
    input_factor: Tensor | None,
    input_mean: Tensor | None,
    dynamic: bool = False,
) -> Tensor:
    """Returns ``matmul * scale + bias``, computed in float32 and rounded once.

    Args:
        x: ``[..., in]``, float32, bfloat16 or float16.
        weight: ``[out, in]``, float8_e4m3fn or int8.
        scale: scale per output channel, float32 ``[out]``: the weight's, times ``input_scale`` if
            there is one.
        bias: ``[out]`` of the dtype of ``x``, or None.
        input_scale: static per-tensor scale of the input, float32 ``[1]``; None if the input is not
            quantized or ``dynamic``.
        input_factor: factor of the input before quantization, float32 ``[in]``, or None.
        input_mean: mean subtracted from the input before that, float32 ``[in]``, or None. The bias
            includes the weight times this mean.
        dynamic: True to quantize the input per token.

    Returns:
        ``[..., out]``, of the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(x, weight, scale, bias, input_scale, input_factor, input_mean, dynamic)
    values = x
    if dynamic:
        values, token_scale = quantized_tokens(x, input_factor, input_mean, weight.dtype)
        scale = token_scale * scale
    elif input_scale is not None:
        values = quantized_input(x, input_scale, input_factor, input_mean, weight.dtype)
    product = F.linear(values.float(), weight.float()) * scale
    return (product if bias is None else product + bias.float()).to(x.dtype)


def quantized_input(
    x: Tensor, scale: Tensor, factor: Tensor | None, mean: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Returns the quantized input of the matmul; the arguments are those of the operator."""
    return quantize(_prepared(x, factor, mean), scale, dtype)


def quantized_tokens(
    x: Tensor, factor: Tensor | None, mean: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Returns the input quantized per token, and the scales, float32 ``[..., 1]``."""
    values = _prepared(x, factor, mean)
    scale = row_scale(values, dtype)
    return quantize(values, scale, dtype), scale


def _prepared(x: Tensor, factor: Tensor | None, mean: Tensor | None) -> Tensor:
    values = x.float() if mean is None else x.float() - mean
    return values if factor is None else values * factor


def dequantized_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Returns a linear layer with its weight dequantized to the dtype of ``x``.

    It is for backends without a mixed 8- and 16-bit matmul. The arguments are the operator's.
    """
    return F.linear(x, (weight.float() * scale[:, None]).to(x.dtype), bias)


def _fake(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    input_scale: Tensor | None,
    input_factor: Tensor | None,
    input_mean: Tensor | None,
    dynamic: bool = False,
) -> Tensor:
    _check(x, weight, scale, bias, input_scale, input_factor, input_mean, dynamic)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _check(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    input_scale: Tensor | None,
    input_factor: Tensor | None,
    input_mean: Tensor | None,
    dynamic: bool,
) -> None:
    _CHECKS.dtype("x", x, FLOATS)
    _CHECKS.shape("weight", weight, ("out", x.shape[-1]))
    _CHECKS.dtype("weight", weight, tuple(LARGEST))
    features_out, features_in = weight.shape
    _CHECKS.shape("scale", scale, (features_out,))
    _CHECKS.dtype("scale", scale, (torch.float32,))
    if bias is not None:
        _CHECKS.shape("bias", bias, (features_out,))
        _CHECKS.dtype("bias", bias, (x.dtype,))
    for name, tensor, sizes in (
        ("input_scale", input_scale, (1,)),
        ("input_factor", input_factor, (features_in,)),
        ("input_mean", input_mean, (features_in,)),
    ):
        if tensor is not None:
            _CHECKS.shape(name, tensor, sizes)
            _CHECKS.dtype(name, tensor, (torch.float32,))
    for name, tensor in (("input_factor", input_factor), ("input_mean", input_mean)):
        alone = tensor is not None and input_scale is None and not dynamic
        _CHECKS.that(not alone, name, "none without input_scale", "a tensor")
    both = dynamic and input_scale is not None
    _CHECKS.that(not both, "input_scale", "none with dynamic scales", "a tensor")


quantized_linear = define_composite(
    "quantized_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias, Tensor? input_scale,"
    " Tensor? input_factor, Tensor? input_mean, bool dynamic=False) -> Tensor",
    quantized_linear_reference,
    _fake,
)
