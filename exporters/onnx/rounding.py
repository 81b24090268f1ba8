"""Checks of QuantizeLinear and DequantizeLinear nodes that parsers compute differently.

External data is not read.
"""

import math

import numpy as np
import onnx_ir as ir

_X, _SCALE, _ZERO_POINT = 0, 1, 2
"""Input positions."""
_FLOAT8 = (
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
)


def rounds(node: ir.Node) -> bool:
    """Returns True if a node is Q or DQ."""
    return node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain in ("", "ai.onnx")


def scale_is_no_constant(node: ir.Node) -> bool:
    """Returns True if the scale is computed or an input of the graph."""
    return rounds(node) and not _is_constant(input_at(node, _SCALE))


def scale_is_not_positive(node: ir.Node) -> bool:
    """Returns True if the graph has a scale that is zero, negative or NaN."""
    scale = _values(input_at(node, _SCALE)) if rounds(node) else None
    return scale is not None and not bool((scale.astype(np.float64) > 0).all())


def scale_does_not_fit(node: ir.Node) -> bool:
    """Returns True unless scales are per tensor, per index of an axis, or per block.

    Also True if an unknown shape hides this.
    """
    if not rounds(node):
        return False
    x, scale = _sizes(input_at(node, _X)), _sizes(input_at(node, _SCALE))
    if scale is not None and math.prod(scale) == 1 and len(scale) <= 1:
        return False
    if x is None or scale is None:
        return True
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if not -len(x) <= axis < len(x):
        return True
    if block:
        expected = list(x)
        expected[axis] = -(-x[axis] // block)
        return list(scale) != expected
    return scale != (x[axis],)


def zero_point_is_not_zero(node: ir.Node) -> bool:
    """Returns True if the zero point is not zero or not known."""
    zero = input_at(node, _ZERO_POINT) if rounds(node) else None
    if zero is None:
        return False
    values = _values(zero)
    return values is None or bool(values.astype(np.float64).any())


def steps_are_unsigned(node: ir.Node) -> bool:
    """Returns True if Q or DQ uses uint8, the default type of Q."""
    return rounds(node) and _steps(node) == ir.DataType.UINT8


def does_not_saturate(node: ir.Node) -> bool:
    """Returns True if Q maps values outside the FP8 range to NaN or infinity."""
    return rounds(node) and node.attributes.get_int("saturate", 1) == 0 and _steps(node) in _FLOAT8


def input_at(node: ir.Node, position: int) -> ir.Value | None:
    """Returns an input of a node, None if the node has fewer."""
    return node.inputs[position] if position < len(node.inputs) else None


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _values(value: ir.Value | None) -> np.ndarray | None:
    """Returns the values of a constant in the graph."""
    if value is None or not _is_constant(value):
        return None
    tensor, producer = value.const_value, value.producer()
    if producer is not None:
        ((name, attribute),) = producer.attributes.items()
        found = attribute.value
        if not isinstance(found, ir.TensorProtocol):
            return np.asarray(found) if name.startswith(("value_float", "value_int")) else None
        tensor = found
    return None if tensor is None or isinstance(tensor, ir.ExternalTensor) else tensor.numpy()


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """Returns a fully known shape."""
    if value is None:
        return None
    values = _values(value)
    if values is not None:
        return values.shape
    if value.shape is None:
        return None
    sizes = tuple(size for size in value.shape if isinstance(size, int))
    return sizes if len(sizes) == len(value.shape) else None


def _steps(node: ir.Node) -> ir.DataType | None:
    """Returns the 8-bit type of Q or DQ; None if unknown."""
    zero = input_at(node, _ZERO_POINT)
    if zero is not None and zero.dtype is not None:
        return zero.dtype
    if node.op_type == "DequantizeLinear":
        x = input_at(node, _X)
        return None if x is None else x.dtype
    named = node.attributes.get_int("output_dtype", 0)
    return ir.DataType(named) if named else ir.DataType.UINT8
