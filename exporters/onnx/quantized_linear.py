"""A Linear in 8 bits as a network of TensorRT's computes it: Q and DQ, with its scales outside.

TensorRT computes a product in 8 bits where the scales of its operands are constants of the network;
given as inputs it dequantizes both before a product of 16 bits. Engines hold no weights and no
calibration, so the scales that Q and DQ have are powers of two, and the real ones are multiplied
before and behind: what is computed is the same, and a kernel for that is there anyway.
"""

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn.functional import linear

from vidc.exporters.onnx.functional import Operators
from vidc.plugins.ops.quantized_linear import quantized_linear

_OPSET = 24
UNIT = {torch.float8_e4m3fn: 2.0**-9, torch.int8: 2.0**-7}
"""The scale of Q and DQ: a value is at most 1 by it, so that no sum of values leaves float16."""


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
    """``vidc::quantized_linear`` for export alone.

    Its input is quantized from float32; the product is given in the dtype of ``x``, and scaled in
    float32.
    """
    if dynamic:
        raise ValueError("a network holds no scale for each token, and one is asked for")
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
