"""Quantized linear layers for TensorRT: Q/DQ with constant scales, and real scales outside.

TensorRT runs an 8-bit matmul only if Q/DQ scales are constants of the network; with scales as
inputs it dequantizes and runs a 16-bit matmul. Plans contain no weights and no calibration, so Q/DQ
scales are powers of two, and the real scales are multiplied before and after. The result is the
same.
"""

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn.functional import linear

from vidc.exporters.onnx.functional import Operators
from vidc.plugins.ops.quantized_linear import quantized_linear

_OPSET = 24
UNIT = {torch.float8_e4m3fn: 2.0**-9, torch.int8: 2.0**-7}
"""The scale of Q/DQ: values are at most 1, so that sums stay in the float16 range."""


def quantized_linear_qdq(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    input_scale: Tensor | None,
    input_factor: Tensor | None,
    input_mean: Tensor | None,
    dynamic: bool = False,
) -> Tensor:
    """``vidc::quantized_linear``, only for export.

    Quantizes the input from float32. The matmul's result has the dtype of ``x`` and is scaled in
    float32.
    """
    if dynamic:
        raise ValueError("a TensorRT network does not support per-token scales")
    unit = UNIT[weight.dtype]
    values, spread = x, 1 / unit
    if input_scale is not None:
        wide = x.float() if input_mean is None else x.float() - input_mean
        wide = wide if input_factor is None else wide * input_factor
        steps = torch.onnx.ops.symbolic(
            "QuantizeLinear",
            (wide / input_scale * unit, _constant(unit, torch.float32)),
            {"output_dtype": int(ir.tensor_adapters.from_torch_dtype(weight.dtype))},
            dtype=weight.dtype,
            shape=x.shape,
            version=_OPSET,
        )
        values, spread = _dequantized(steps, unit, x.dtype), spread / unit
    rows = linear(values.flatten(0, -2), _dequantized(weight, unit, x.dtype))
    product = rows.float() * scale * spread
    if bias is not None:
        product = product + bias.float()
    return product.to(x.dtype).reshape(*x.shape[:-1], -1)


def _dequantized(steps: Tensor, unit: float, dtype: torch.dtype) -> Tensor:
    return torch.onnx.ops.symbolic(
        "DequantizeLinear",
        (steps, _constant(unit, dtype)),
        dtype=dtype,
        shape=steps.shape,
        version=_OPSET,
    )


def _constant(value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((), value, dtype=dtype)


QUANTIZED: Operators = {quantized_linear: quantized_linear_qdq}
"""The operator in this form, beside those of ``vidc.exporters.onnx.native_ring.NATIVE``."""
