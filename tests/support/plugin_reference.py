"""ONNX's reference evaluator for graphs with vidc's plugins, which the operators compute."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import Tensor

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

OPERATORS = (
    gelu_quantize, qk_norm_rope_ring_write, qk_norm_rope_ring_write_static, ring_attention_8bit,
    ring_attention_16bit,
)  # fmt: skip
BY_BITS = {
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.bfloat16): (np.uint16, torch.bfloat16),
}
"""Dtypes that torch cannot take from NumPy, with an integer as wide and torch's name."""


def evaluator(path: Any) -> ReferenceEvaluator:
    """Returns an evaluator of a graph."""
    return ReferenceEvaluator(onnx.load(path), new_ops=[_node(each) for each in OPERATORS])


def to_torch(array: Any) -> Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype not in BY_BITS:
        return torch.from_numpy(array.copy())
    bits, dtype = BY_BITS[array.dtype]
    return torch.from_numpy(array.view(bits).copy()).view(dtype)


def to_numpy(tensor: Tensor) -> Any:
    for dtype, (bits, known) in BY_BITS.items():
        if tensor.dtype is known:
            wide = {np.uint8: torch.uint8, np.uint16: torch.uint16}[bits]
            return tensor.contiguous().view(wide).numpy().view(dtype)
    return tensor.numpy()


def _node(operator: torch._ops.OpOverload) -> type[OpRun]:
    """Returns a node type that takes the tensors that are given in the order of the schema."""
    arguments = operator._schema.arguments
    name = operator.name().removeprefix("vidc::")

    def run(self: OpRun, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        left = [to_torch(value) for value in inputs]
        tensors = [a for a in arguments if "Tensor" in str(a.type)]
        spare = len(left) - sum("Optional" not in str(a.type) for a in tensors)
        given: dict[str, Any] = {}
        for argument in arguments:
            if argument not in tensors:
                given[argument.name] = attributes[argument.name]
            elif "Optional" not in str(argument.type):
                given[argument.name] = left.pop(0)
            elif spare:
                spare -= 1
                given[argument.name] = left.pop(0)
            else:
                given[argument.name] = None
        assert not left, f"{name} has {len(left)} inputs too many"
        found = operator(*given.values())
        results = [found] if isinstance(found, Tensor) else list(found or ())
        written = [given[a.name] for a in arguments if a.is_write]
        # A plugin has no output of scales that are empty.
        return tuple(to_numpy(each) for each in (*results, *written) if each.numel())

    return type(name, (OpRun,), {"op_domain": "vidc", "_run": run})
