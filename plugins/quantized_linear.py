"""Operator ``quantized_linear``: a Linear with its weight, and perhaps its input, in 8 bits.

It keeps the place in a program where a backend puts the products that it has: no kernel is its own.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, Checks
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
    """The product, its scale and the bias; computed in float32 and rounded once.

    Args:
        x: ``[..., in]``, float32, bfloat16 or float16.
        weight: ``[out, in]``, float8_e4m3fn or int8.
        scale: of each output channel of the product, float32 ``[out]``: the weight's, times the
            input's where that is quantized by one number.
        bias: ``[out]`` of the dtype of ``x``, or None.
        input_scale: float32 ``[1]``; None where the input stays as it is, or is ``dynamic``.
        input_factor: what the input is multiplied with before it is quantized, float32 ``[in]``,
            or None.
        input_mean: what is taken off the input before that, float32 ``[in]``, or None. The bias has
            the product of the weight and this.
        dynamic: whether each token of the input is quantized by a scale of its own.

    Returns:
        ``[..., out]``, of the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(x, weight, scale, bias, input_scale, input_factor, input_mean, dynamic)
    values = x.float()
    if dynamic:
        steps, tokens = quantized_tokens(x, input_factor, input_mean, weight.dtype)
        product = F.linear(steps.float(), weight.float()) * (tokens * scale)
    else:
        if input_scale is not None:
            values = quantized_input(x, input_scale, input_factor, input_mean, weight.dtype).float()
        product = F.linear(values, weight.float()) * scale
    return (product if bias is None else product + bias.float()).to(x.dtype)


def quantized_input(
    x: Tensor, scale: Tensor, factor: Tensor | None, mean: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The input as the product takes it; the arguments are those of the operator."""
    return quantize(_prepared(x, factor, mean), scale, dtype)


def quantized_tokens(
    x: Tensor, factor: Tensor | None, mean: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """As ``quantized_input``, and the scales by which it is: each token's, float32 ``[..., 1]``."""
    values = _prepared(x, factor, mean)
    scale = row_scale(values, dtype)
    return quantize(values, scale, dtype), scale


def _prepared(x: Tensor, factor: Tensor | None, mean: Tensor | None) -> Tensor:
    values = x.float() if mean is None else x.float() - mean
    return values if factor is None else values * factor


def dequantized_linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The form of a Linear whose input is not quantized: its weight becomes one of ``x``'s dtype.

    For backends without a product of 8 bits and 16; the arguments are those of the operator.
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
    for name, given, sizes in (
        ("input_scale", input_scale, (1,)),
        ("input_factor", input_factor, (features_in,)),
        ("input_mean", input_mean, (features_in,)),
    ):
        if given is not None:
            _CHECKS.shape(name, given, sizes)
            _CHECKS.dtype(name, given, (torch.float32,))
    for name, given in (("input_factor", input_factor), ("input_mean", input_mean)):
        alone = given is not None and input_scale is None and not dynamic
        _CHECKS.that(not alone, name, "none without input_scale", "a tensor")
    both = dynamic and input_scale is not None
    _CHECKS.that(not both, "input_scale", "none beside a scale for each token", "a tensor")


LIBRARY = torch.library.Library("vidc", "FRAGMENT")
LIBRARY.define(
    "quantized_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias, Tensor? input_scale,"
    " Tensor? input_factor, Tensor? input_mean, bool dynamic=False) -> Tensor"
)
LIBRARY.impl("quantized_linear", quantized_linear_reference, "CompositeExplicitAutograd")
torch.library.register_fake("vidc::quantized_linear", _fake, lib=LIBRARY)
quantized_linear = torch.ops.vidc.quantized_linear.default
