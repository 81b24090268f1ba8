"""ONNX forms of the operators that quantized modules call, for export only.

ONNX Runtime fuses a Gemm and the DequantizeLinear nodes before it to an integer matmul if both have
a zero point and the bias is a node of its own. On x86, inputs in uint8 with weights in int8 are ten
times as fast as inputs in int8.

TensorRT runs an 8-bit matmul only if Q/DQ scales are constants of the network. Plans contain no
weights and no calibration, so its Q/DQ scales are powers of two, and the real scales are multiplied
before and after. The result is the same.
"""

from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.rotary import ROTARY
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.quantized_conv2d import (
    ConvolutionArguments,
    quantized_conv2d,
    rows_of_patches,
)
from vidc.plugins.ops.quantized_linear import LinearArguments, prepared, quantized_linear
from vidc.plugins.signature import DTYPES

_OPSET = 24
_CHANNELS = 0
"""Axis of a weight's output channels."""
_HEADS = 2
"""Axis of the scales in ``[B, T, H, D]``."""
_MIDDLE = 128
"""Zero point of unsigned inputs."""
UNIT = {torch.float8_e4m3fn: 2.0**-9, torch.int8: 2.0**-7}
"""The scale of TensorRT's Q/DQ: values are at most 1, so that sums stay in the float16 range."""


def linear_for_onnxruntime(*arguments: Any) -> Tensor:
    """``vidc::quantized_linear`` in INT8, as ONNX Runtime fuses it to one QGemm."""
    x, weight, weight_scale, bias, scale, factor, mean, dynamic = LinearArguments(*arguments)
    if dynamic:
        raise ValueError("ONNX Runtime multiplies no integers with per-token scales")
    rows, shape = x.flatten(0, -2), (*x.shape[:-1], weight.shape[0])
    if scale is None:
        return linear(rows, _wide(weight, weight_scale, x.dtype), bias).reshape(shape)
    steps = _unsigned(prepared(rows, factor, mean), scale)
    return _gemm(steps, scale, weight, weight_scale, bias, x.dtype).reshape(shape)


def convolution_for_onnxruntime(*arguments: Any) -> Tensor:
    """``vidc::quantized_conv2d`` as patches of the quantized input and one QGemm.

    ONNX Runtime fuses a convolution between Q/DQ only if its output is quantized too, and computes
    ConvInteger slower than a convolution in float32.
    """
    args = ConvolutionArguments(*arguments)
    patches = rows_of_patches(_unsigned(args.x.float(), args.scale), args, _MIDDLE)
    product = _gemm(patches, args.scale, args.weight, args.weight_scale, args.bias, args.x.dtype)
    batch, outputs, height, width = args.output_shape
    return product.reshape(batch, height, width, outputs).permute(0, 3, 1, 2)


def _unsigned(values: Tensor, scale: Tensor) -> Tensor:
    zero = torch.full((), _MIDDLE, dtype=torch.uint8)
    return _node("QuantizeLinear", (values, scale, zero), torch.uint8, values.shape)


def _wide(weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(weight.shape[0], dtype=weight.dtype)
    given = (weight, weight_scale.to(dtype), zeros)
    return _node("DequantizeLinear", given, dtype, weight.shape, axis=_CHANNELS)


def _gemm(
    steps: Tensor,
    scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Multiplies quantized rows, uint8 ``[N, in]``, with a weight; returns ``[N, out]``."""
    wide = _wide(weight, weight_scale, dtype)
    zero = torch.full((), _MIDDLE, dtype=torch.uint8)
    rows = _node("DequantizeLinear", (steps, scale.to(dtype), zero), dtype, steps.shape)
    product = _node("Gemm", (rows, wide), dtype, (steps.shape[0], weight.shape[0]), transB=1)
    return product if bias is None else product + bias


def linear_for_tensorrt(*arguments: Any) -> Tensor:
    """``vidc::quantized_linear`` with constant scales in Q/DQ.

    Quantizes the input from float32. The matmul's result has the dtype of ``x`` and is scaled in
    float32.
    """
    x, weight, weight_scale, bias, scale, factor, mean, dynamic = LinearArguments(*arguments)
    if dynamic:
        raise ValueError("a TensorRT network does not support per-token scales")
    unit = UNIT[weight.dtype]
    values, spread = x, torch.full((), 1 / unit)
    if scale is not None:
        steps = _steps(prepared(x, factor, mean), scale, weight.dtype)
        values, spread = _dequantized(steps, unit, x.dtype), scale * (1 / unit**2)
    rows = linear(values.flatten(0, -2), _dequantized(weight, unit, x.dtype))
    return _finished(rows.float() * weight_scale * spread, bias, x)


def convolution_for_tensorrt(*arguments: Any) -> Tensor:
    """``vidc::quantized_conv2d`` as a convolution between Q/DQ with constant scales.

    Quantizes the input from float32. The convolution's result has the dtype of ``x`` and is scaled
    in float32.
    """
    args = ConvolutionArguments(*arguments)
    unit, dtype = UNIT[args.weight.dtype], args.x.dtype
    values = _dequantized(_steps(args.x.float(), args.scale, args.weight.dtype), unit, dtype)
    weight = args.weight.unflatten(1, (*args.kernel, -1)).permute(0, 3, 1, 2)
    weight = _dequantized(weight, unit, dtype)
    product = conv2d(values, weight, None, [*args.stride], [*args.padding]).float()
    result = product * (args.weight_scale * (args.scale * (1 / unit**2)))[:, None, None]
    if args.bias is not None:
        result = result + args.bias.float()[:, None, None]
    return result.to(dtype)


def convolution_as_matmul(*arguments: Any) -> Tensor:
    """``vidc::quantized_conv2d`` as ``linear_for_tensorrt`` of the input's patches.

    Q follows the patches, as TensorRT fuses Q/DQ that are next to the matmul.
    """
    args = ConvolutionArguments(*arguments)
    rows = rows_of_patches(args.x, args, 0)
    linear_layer = (args.weight, args.weight_scale, args.bias, args.scale, None, None, False)
    batch, outputs, height, width = args.output_shape
    product = linear_for_tensorrt(rows, *linear_layer)
    return product.reshape(batch, height, width, outputs).permute(0, 3, 1, 2)


def linear_from_steps(
    steps: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """``linear_for_tensorrt`` for an input that a plugin quantized.

    Args:
        steps: the quantized input, ``[..., in]`` of the weight's dtype.
        weight: ``[out, in]``, FP8.
        weight_scale: float32 ``[out]``.
        bias: ``[out]``, or None.
        scale: the input's scale, a float32 scalar.
        dtype: dtype of the result, ``[..., out]``.
    """
    unit = UNIT[weight.dtype]
    values = _dequantized(steps, unit, dtype)
    rows = linear(values.flatten(0, -2), _dequantized(weight, unit, dtype))
    return _finished(rows.float() * weight_scale * (scale * (1 / unit**2)), bias, values)


def _finished(product: Tensor, bias: Tensor | None, like: Tensor) -> Tensor:
    """Adds the bias to a matmul's rows in float32; dtype and leading axes are those of ``like``."""
    if bias is not None:
        product = product + bias.float()
    return product.to(like.dtype).reshape(*like.shape[:-1], -1)


def quantize_kv_node(
    x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str, operand: str = ""
) -> Tensor:
    """``vidc::quantize_kv``; INT8 out of range may become -128."""
    return _quantized(prepared(x, None, mean), scale, DTYPES[dtype], axis=_HEADS)


def dequantize_kv_nodes(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """``vidc::dequantize_kv``."""
    values = _node("DequantizeLinear", (x, scale), torch.float32, x.shape, axis=_HEADS)
    return values.to(DTYPES[dtype])


def dequantize_kv_for_tensorrt(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """``vidc::dequantize_kv`` with a constant scale in DQ; the result is scaled in float32."""
    unit = UNIT[x.dtype]
    values = _dequantized(x, unit, torch.float32) * (scale * (1 / unit))[:, None]
    return values.to(DTYPES[dtype])


def separate_zero_points(model: ir.Model) -> None:
    """Gives every DequantizeLinear of a weight a zero point of its own, in place.

    For processors without VNNI, ONNX Runtime rewrites each weight and its zero point, and fails on
    one that several weights share.
    """
    for node in [*model.graph]:
        zero = (
            node.inputs[2] if node.op_type == "DequantizeLinear" and len(node.inputs) > 2 else None
        )
        if zero is None or zero.dtype != ir.DataType.INT8 or zero.const_value is None:
            continue
        own = ir.Value(
            name=f"{node.outputs[0].name}_zero", shape=zero.shape, type=zero.type,
            const_value=zero.const_value,
        )  # fmt: skip
        model.graph.register_initializer(own)
        node.replace_input_with(2, own)
        if not zero.uses():
            del model.graph.initializers[zero.name]


def _steps(values: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantizes float32 values with a scale that is multiplied in before Q."""
    unit = UNIT[dtype]
    return _quantized(values / scale * unit, _constant(unit, torch.float32), dtype)


def _quantized(values: Tensor, scale: Tensor, dtype: torch.dtype, **axis: int) -> Tensor:
    to = int(ir.tensor_adapters.from_torch_dtype(dtype))
    return _node("QuantizeLinear", (values, scale), dtype, values.shape, output_dtype=to, **axis)


def _dequantized(steps: Tensor, unit: float, dtype: torch.dtype) -> Tensor:
    return _node("DequantizeLinear", (steps, _constant(unit, dtype)), dtype, steps.shape)


def _constant(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((), value, dtype=dtype)


def _node(
    operation: str,
    inputs: tuple[Tensor, ...],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    **attributes: Any,
) -> Tensor:
    return torch.onnx.ops.symbolic(
        operation, inputs, attributes, dtype=dtype, shape=shape, version=_OPSET
    )


ONNXRUNTIME: Operators = {
    quantized_linear: linear_for_onnxruntime,
    quantized_conv2d: convolution_for_onnxruntime,
    quantize_kv: quantize_kv_node,
    dequantize_kv: dequantize_kv_nodes,
    **ROTARY,
}
"""Forms for graphs that a CPU runs."""
TENSORRT: Operators = {
    quantized_linear: linear_for_tensorrt,
    quantized_conv2d: convolution_for_tensorrt,
    dequantize_kv: dequantize_kv_for_tensorrt,
}
"""Forms for graphs that TensorRT parses; plugins quantize what they write to the ring."""
