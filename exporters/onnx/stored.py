"""Quantized KV rings in ONNX: Q before a block is written, DQ after the ring is read."""

from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor

from vidc.exporters.onnx.functional import Operators
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.signature import DTYPE_NAMES, DTYPES, Signature, state_output

_OPSET = 24
_HEADS = 2
"""Axis of the scales in ``[B, T, H, D]``."""


def stored_q(x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str) -> Tensor:
    """``vidc::quantize_kv``, only for export; INT8 out of range may become -128."""
    values = x.float() if mean is None else x.float() - mean
    return torch.onnx.ops.symbolic(
        "QuantizeLinear",
        (values, scale),
        {"axis": _HEADS, "output_dtype": int(ir.tensor_adapters.from_torch_dtype(DTYPES[dtype]))},
        dtype=DTYPES[dtype],
        shape=x.shape,
        version=_OPSET,
    )


def restored_dq(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """``vidc::dequantize_kv``, only for export."""
    values = torch.onnx.ops.symbolic(
        "DequantizeLinear",
        (x, scale),
        {"axis": _HEADS},
        dtype=torch.float32,
        shape=x.shape,
        version=_OPSET,
    )
    return values.to(DTYPES[dtype])


STORED: Operators = {quantize_kv: stored_q, dequantize_kv: restored_dq}
"""ONNX forms of the operators."""


@dataclass(frozen=True)
class StoredState:
    """Initializer names of a quantized state."""

    scale: str
    mean: str | None
    dtype: str


def found_stored(
    model: ir.Model, signature: Signature
) -> tuple[dict[str, StoredState], frozenset[ir.Node]]:
    """Returns the quantized states of a graph, found from its edges, and their Q/DQ nodes.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a state is not written by a ScatterND of quantized
            values, or is dequantized with another scale.
    """
    outputs = {value.name: value for value in model.graph.outputs}
    kept, nodes = {}, set[ir.Node]()
    for state in signature.states:
        if not state.writes:
            continue
        written = outputs[state_output(state.name)]
        if written.dtype not in (ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN):
            continue
        while (producer := written.producer()) is not None and producer.op_type == "Identity":
            written = _given(producer, 0)
        quantized = None if producer is None else _given(producer, -1).producer()
        if (
            producer is None
            or producer.op_type != "ScatterND"
            or _given(producer, 0).name != state.name
            or quantized is None
            or quantized.op_type != "QuantizeLinear"
        ):
            raise _wrong(model, state.name, "is not written by a ScatterND of quantized values")
        scale = _given(quantized, 1).name
        reads = [node for node in written.consumers() if node.op_type != "Identity"]
        for node in reads:
            if node.op_type != "DequantizeLinear" or _given(node, 1).name != scale:
                raise _wrong(model, state.name, f"is read by {node.op_type} {node.name!r}")
        source = _given(quantized, 0).producer()
        mean = None
        if source is not None and source.op_type == "Sub" and _given(source, 1).is_initializer():
            mean = _given(source, 1).name
        dtype = DTYPE_NAMES[ir.tensor_adapters.to_torch_dtype(written.dtype)]
        kept[state.name] = StoredState(str(scale), mean, dtype)
        nodes |= {quantized, *reads}
    return kept, frozenset(nodes)


def _given(node: ir.Node, position: int) -> ir.Value:
    value = node.inputs[position]
    assert value is not None
    return value


def _wrong(model: ir.Model, state: str, why: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-GRAPH",
        f"{model.graph.name}: {state} is to be in 8 bits, and {why}",
        "report it with this message",
    )
