"""Operator ``quantized_conv2d``: a convolution in INT8 with a scale per output channel.

A backend puts its quantized convolution in its place; it has no kernel of its own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import FLOATS, Checks
from vidc.plugins.definition import define_composite
from vidc.plugins.quantize import quantize

_CHECKS = Checks("quantized_conv2d")


class ConvolutionArguments(NamedTuple):
    """Arguments of the operator, in this order."""

    x: Tensor
    """``[N, C, H, W]``, float32, bfloat16 or float16."""
    weight: Tensor
    """int8 ``[out, kh * kw * C]``, channels last: a row is a patch of the input."""
    weight_scale: Tensor
    """Scale per output channel, float32 ``[out]``."""
    bias: Tensor | None
    """``[out]`` of the dtype of ``x``, or None."""
    scale: Tensor
    """Static per-tensor scale of the input, float32 scalar."""
    kernel: Sequence[int]
    """Height and width of the kernel."""
    stride: Sequence[int]
    padding: Sequence[int]
    """Rows of zeros above and below, and columns of zeros left and right."""

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, ``[N, out, H', W']``."""
        height, width = (
            (size + 2 * pad - side) // step + 1
            for size, side, step, pad in zip(
                self.x.shape[2:], self.kernel, self.stride, self.padding, strict=True
            )
        )
        return self.x.shape[0], self.weight.shape[0], height, width


def quantized_conv2d_reference(*arguments: Any) -> Tensor:
    """Returns ``convolution * scales + bias``, computed in float32 and rounded once.

    Args:
        arguments: the fields of ``ConvolutionArguments``.

    Returns:
        ``[N, out, H', W']``, of the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    args = ConvolutionArguments(*arguments)
    _check(args)
    values = quantize(args.x.float(), args.scale, args.weight.dtype).float()
    weight = args.weight.float().unflatten(1, (*args.kernel, -1)).permute(0, 3, 1, 2)
    product = F.conv2d(values, weight, None, list(args.stride), list(args.padding))
    result = product * (args.scale * args.weight_scale)[:, None, None]
    if args.bias is not None:
        result = result + args.bias.float()[:, None, None]
    return result.to(args.x.dtype).contiguous()


def rows_of_patches(steps: Tensor, args: ConvolutionArguments, zero: int) -> Tensor:
    """Returns the patches that a kernel sees, ``[N * H' * W', kh * kw * C]``.

    Args:
        steps: quantized input, ``[N, C, H, W]``.
        args: the operator's.
        zero: value of the padding.
    """
    (rows, columns), (down, right) = args.kernel, args.stride
    top, left = args.padding
    pixels = steps.permute(0, 2, 3, 1)
    if top or left:
        pixels = F.pad(pixels, (0, 0, left, left, top, top), value=zero)
    _, _, height, width = args.output_shape
    shifted = [
        pixels[:, i : i + down * (height - 1) + 1 : down, j : j + right * (width - 1) + 1 : right]
        for i in range(rows)
        for j in range(columns)
    ]
    patches = shifted[0] if len(shifted) == 1 else torch.cat(shifted, -1)
    return patches.reshape(-1, patches.shape[-1])


def _fake(*arguments: Any) -> Tensor:
    args = ConvolutionArguments(*arguments)
    _check(args)
    return args.x.new_empty(args.output_shape)


def _check(args: ConvolutionArguments) -> None:
    _CHECKS.shape("x", args.x, ("N", "C", "H", "W"))
    _CHECKS.dtype("x", args.x, FLOATS)
    rows, columns = args.kernel
    _CHECKS.shape("weight", args.weight, ("out", rows * columns * args.x.shape[1]))
    _CHECKS.dtype("weight", args.weight, (torch.int8,))
    outputs = args.weight.shape[0]
    _CHECKS.shape("weight_scale", args.weight_scale, (outputs,))
    _CHECKS.dtype("weight_scale", args.weight_scale, (torch.float32,))
    if args.bias is not None:
        _CHECKS.shape("bias", args.bias, (outputs,))
        _CHECKS.dtype("bias", args.bias, (args.x.dtype,))
    _CHECKS.shape("scale", args.scale, ())
    _CHECKS.dtype("scale", args.scale, (torch.float32,))
    _CHECKS.that(
        min(args.output_shape[2:]) > 0, "kernel", "one no larger than the padded input", args.kernel
    )


quantized_conv2d = define_composite(
    "quantized_conv2d(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor scale,"
    " int[2] kernel, int[2] stride, int[2] padding) -> Tensor",
    quantized_conv2d_reference,
    _fake,
)
