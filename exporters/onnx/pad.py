"""Padding for ONNX Runtime, which has no bfloat16 kernel for it."""

import onnx_ir as ir

from vidc.exporters.onnx.constructs import pads_bfloat16

_VALUE = 2
"""Input position of the padding value."""


def widen_pads(model: ir.Model) -> None:
    """Pads bfloat16 tensors in float32, with equal results.

    Args:
        model: changed in place; its values' dtypes are known.
    """
    for node in [node for node in model.graph if pads_bfloat16(node)]:
        (padded,) = node.outputs
        inputs: list[ir.Value | None] = list(node.inputs)
        casts = {
            position: _cast(value, ir.DataType.FLOAT, f"{padded.name}_of_{position}")
            for position in (0, _VALUE)
            if position < len(inputs) and (value := inputs[position]) is not None
        }
        for position, cast in casts.items():
            inputs[position] = cast.outputs[0]
        wide = ir.node("Pad", inputs, node.attributes, name=node.name)
        wide.outputs[0].name = f"{padded.name}_wide"
        wide.outputs[0].shape = padded.shape
        wide.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        back = _cast(wide.outputs[0], ir.DataType.BFLOAT16, f"{padded.name}_narrow")
        wide.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(
            model.graph, node, [node], [*casts.values(), wide, back], [padded], back.outputs
        )


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": dtype.value}, name=f"cast_{name}")
    node.outputs[0].name = name
    node.outputs[0].shape = value.shape
    node.outputs[0].type = ir.TensorType(dtype)
    return node
