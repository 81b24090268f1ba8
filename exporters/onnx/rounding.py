"""What of QuantizeLinear and DequantizeLinear parsers take for something else, node by node.

A value that the graph only refers to, in another file, is not read.
"""

import math

import numpy as np
import onnx_ir as ir

_X, _SCALE, _ZERO_POINT = 0, 1, 2
"""Positions of their inputs."""
_FLOAT8 = (
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
)


def rounds(node: ir.Node) -> bool:
    """Whether a node is Q or DQ."""
    return node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain in ("", "ai.onnx")


def scale_is_no_constant(node: ir.Node) -> bool:
    """Whether the scale of Q or DQ is computed, or an input of the graph."""
    return rounds(node) and not _is_constant(_input(node, _SCALE))


def scale_is_not_positive(node: ir.Node) -> bool:
    """Whether a scale that the graph holds is zero, negative or not a number."""
    scale = _values(_input(node, _SCALE)) if rounds(node) else None
    return scale is not None and not bool((scale.astype(np.float64) > 0).all())


def scale_does_not_fit(node: ir.Node) -> bool:
    """Whether there is not one scale for all values, for each index of an axis, or for each block.

    So is one of which that cannot be seen, as a shape is unknown.
    """
    if not rounds(node):
        return False
    x, scale = _sizes(_input(node, _X)), _sizes(_input(node, _SCALE))
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
    """Whether Q or DQ has a zero point other than zero, or one that cannot be seen."""
    zero = _input(node, _ZERO_POINT) if rounds(node) else None
    if zero is None:
        return False
    values = _values(zero)
    return values is None or bool(values.astype(np.float64).any())


def steps_are_unsigned(node: ir.Node) -> bool:
    """Whether Q or DQ is of uint8, as one of Q is that names no type."""
    return rounds(node) and _steps(node) == ir.DataType.UINT8


def does_not_saturate(node: ir.Node) -> bool:
    """Whether Q makes NaN and infinity of what is out of FP8's range."""
    return rounds(node) and node.attributes.get_int("saturate", 1) == 0 and _steps(node) in _FLOAT8


def _input(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _is_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _values(value: ir.Value | None) -> np.ndarray | None:
    """The values of a constant that the graph holds."""
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
    """A shape that is known in full."""
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
    """The type that Q rounds to, or DQ reads; None where it is not known."""
    zero = _input(node, _ZERO_POINT)
    if zero is not None and zero.dtype is not None:
        return zero.dtype
    if node.op_type == "DequantizeLinear":
        x = _input(node, _X)
        return None if x is None else x.dtype
    named = node.attributes.get_int("output_dtype", 0)
    return ir.DataType(named) if named else ir.DataType.UINT8
