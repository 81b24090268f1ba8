"""Operator ``quantized_linear``: a linear layer with an 8-bit weight and, optionally, input.

A backend puts its quantized matmul in its place; it has no kernel of its own.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, Checks
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import LARGEST, quantize, row_scale

_CHECKS = Checks("quantized_linear")


class LinearArguments(NamedTuple):
    """Arguments of the operator, in this order."""

    x: Tensor
    """``[..., in]``, float32, bfloat16 or float16."""
    weight: Tensor
    """``[out, in]``, float8_e4m3fn or int8."""
    weight_scale: Tensor
    """Scale per output channel, float32 ``[out]``."""
    bias: Tensor | None
    """``[out]`` of the dtype of ``x``, or None."""
    scale: Tensor | None
    """Static per-tensor scale of the input, float32 scalar; None if the input is not quantized or
    ``dynamic``."""
    pre_quant_scale: Tensor | None
    """Multiplies the input before quantization, float32 ``[in]``, or None."""
    mean: Tensor | None
    """Subtracted from the input before that, float32 ``[in]``, or None. The bias includes the
    weight times this mean."""
    dynamic: bool = False
    """True to quantize the input per token."""


def quantized_linear_reference(*arguments: Any) -> Tensor:
    """Returns ``matmul * scales + bias``, computed in float32 and rounded once.

    Args:
        arguments: the fields of ``LinearArguments``.

    Returns:
        ``[..., out]``, of the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    args = LinearArguments(*arguments)
    _check(args)
    x, weight, factor, mean = args.x, args.weight, args.pre_quant_scale, args.mean
    values, scales = x, args.weight_scale
    if args.dynamic:
        values, of_tokens = quantized_tokens(x, factor, mean, weight.dtype)
        scales = of_tokens * args.weight_scale
    elif args.scale is not None:
        values = quantized_input(x, args.scale, factor, mean, weight.dtype)
        scales = args.scale * args.weight_scale
    product = F.linear(values.float(), weight.float()) * scales
    return (product if args.bias is None else product + args.bias.float()).to(x.dtype)


def quantized_input(
    x: Tensor,
    scale: Tensor,
    pre_quant_scale: Tensor | None,
    mean: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Returns the quantized input of the matmul; the arguments are those of the operator."""
    return quantize(prepared(x, pre_quant_scale, mean), scale, dtype)


def quantized_tokens(
    x: Tensor, pre_quant_scale: Tensor | None, mean: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Returns the input quantized per token, and the scales, float32 ``[..., 1]``."""
    values = prepared(x, pre_quant_scale, mean)
    scale = row_scale(values, dtype)
    return quantize(values, scale, dtype), scale


def prepared(x: Tensor, pre_quant_scale: Tensor | None, mean: Tensor | None) -> Tensor:
    """Returns the values that are quantized, float32."""
    values = x.float() if mean is None else x.float() - mean
    return values if pre_quant_scale is None else values * pre_quant_scale


def dequantized_linear(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """Returns a linear layer with its weight dequantized to the dtype of ``x``.

    It is for backends without a mixed 8- and 16-bit matmul. The arguments are the operator's.
    """
    return F.linear(x, (weight.float() * weight_scale[:, None]).to(x.dtype), bias)


def _fake(*arguments: Any) -> Tensor:
    args = LinearArguments(*arguments)
    _check(args)
    return args.x.new_empty((*args.x.shape[:-1], args.weight.shape[0]))


def _check(args: LinearArguments) -> None:
    x, weight, weight_scale, bias, scale, pre_quant_scale, mean, dynamic = args
    _CHECKS.dtype("x", x, FLOATS)
    _CHECKS.shape("weight", weight, ("out", x.shape[-1]))
    _CHECKS.dtype("weight", weight, tuple(LARGEST))
    features_out, features_in = weight.shape
    _CHECKS.shape("weight_scale", weight_scale, (features_out,))
    _CHECKS.dtype("weight_scale", weight_scale, (torch.float32,))
    if bias is not None:
        _CHECKS.shape("bias", bias, (features_out,))
        _CHECKS.dtype("bias", bias, (x.dtype,))
    for name, tensor, sizes in (
        ("scale", scale, ()),
        ("pre_quant_scale", pre_quant_scale, (features_in,)),
        ("mean", mean, (features_in,)),
    ):
        if tensor is not None:
            _CHECKS.shape(name, tensor, sizes)
            _CHECKS.dtype(name, tensor, (torch.float32,))
    for name, tensor in (("pre_quant_scale", pre_quant_scale), ("mean", mean)):
        alone = tensor is not None and scale is None and not dynamic
        _CHECKS.that(not alone, name, "none without scale", "a tensor")
    both = dynamic and scale is not None
    _CHECKS.that(not both, "scale", "none with dynamic scales", "a tensor")


quantized_linear = define_composite(
    "quantized_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? scale,"
    " Tensor? pre_quant_scale, Tensor? mean, bool dynamic=False) -> Tensor",
    quantized_linear_reference,
    _fake,
)
