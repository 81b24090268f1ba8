"""Rewrites attention for a CPU: packed heads, and a number of valid keys instead of a mask.

ONNX Runtime's kernel reads packed heads, ``[B, T, H D]``, where they lie in a token, and writes
them there, so transposes are not needed. It expands a boolean mask to float32 for each head. Given
the number of valid keys, it only overwrites the scores of the other keys. The result is bit for bit
the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

_HEADS_FIRST = [0, 2, 1, 3]
"""``[B, T, H, D]`` to ``[B, H, T, D]`` and back."""
_MASK = 3
"""Input of Attention, after query, key and value."""


@dataclass(frozen=True)
class _Place:
    """Attention between transposes.

    Attributes:
        attention: the node.
        sources: query, key and value before their transposes, ``[B, T, H, D]``.
        transpose: the transpose of the result.
    """

    attention: ir.Node
    sources: Sequence[ir.Value]
    transpose: ir.Node


def use_packed_heads(model: ir.Model) -> int:
    """Rewrites attention whose queries, keys, values and result are transposed, in place.

    Returns:
        The number of Attention nodes that were rewritten.
    """
    count = 0
    for node in [*model.graph]:
        if (place := _place(node)) is not None:
            _rewrite(model.graph, place)
            count += 1
    common.RemoveUnusedNodesPass()(model)
    return count


def _place(node: ir.Node) -> _Place | None:
    """Returns attention without a cache whose operands and result are transposed, or None."""
    if node.op_type != "Attention" or len(node.outputs) > 1 or any(node.inputs[_MASK + 1 :]):
        return None
    operands = [value.producer() for value in node.inputs[:_MASK] if value is not None]
    (result,) = node.outputs
    uses = result.uses()
    if result.is_graph_output() or len(uses) != 1:
        return None
    transpose = uses[0].node
    sources = [each.inputs[0] for each in operands if _transposes_heads(each)]
    if len(sources) < _MASK or not _transposes_heads(transpose):
        return None
    return _Place(node, [value for value in sources if value is not None], transpose)


def _transposes_heads(node: ir.Node | None) -> TypeGuard[ir.Node]:
    return (
        node is not None
        and node.op_type == "Transpose"
        and "perm" in node.attributes
        and [*node.attributes["perm"].as_ints()] == _HEADS_FIRST
        and (shape := node.outputs[0].shape) is not None
        and shape.is_static()
    )


def _rewrite(graph: ir.Graph, place: _Place) -> None:
    tape, attention = ir.tape.Tape(), place.attention
    query, key, _ = place.sources
    packed = [_reshaped(tape, each, (*_sizes(each)[:2], -1)) for each in place.sources]
    mask = attention.inputs[_MASK] if len(attention.inputs) > _MASK else None
    inputs = [*packed, mask]
    length = None if mask is None or _is_causal(attention) else _valid_length(mask)
    if length is not None:
        lengths = tape.op("Expand", [length, _constant(tape, _sizes(query)[:1])])
        # Without mask and past keys and values; the last input is nonpad_kv_seqlen.
        inputs = [*packed, None, None, None, lengths]
    heads = {"q_num_heads": _sizes(query)[2], "kv_num_heads": _sizes(key)[2]}
    result = tape.op("Attention", inputs, {**attention.attributes, **heads})
    (transposed,) = place.transpose.outputs
    result = _reshaped(tape, result, _sizes(transposed))
    ir.convenience.replace_nodes_and_values(
        graph, place.transpose, [attention, place.transpose], tape.nodes, [transposed], [result]
    )


def _is_causal(attention: ir.Node) -> bool:
    """Returns True for causal attention, in which a number of keys would shift their positions."""
    return "is_causal" in attention.attributes and attention.attributes["is_causal"].as_int() != 0


def _valid_length(mask: ir.Value) -> ir.Value | None:
    """Returns the number of valid keys, int64 ``[1]``, if it alone determines a mask; else None.

    Such a mask is True for key indices less than the number, the same for all queries.
    """
    keys, node = _sizes(mask)[-1], mask.producer()
    while node is not None and node.op_type in ("Expand", "Unsqueeze"):
        (value, *_) = node.inputs
        if value is None or _sizes(value)[-1:] != (keys,):
            return None
        node = value.producer()
    if node is None or node.op_type != "Less":
        return None
    indices, length = node.inputs
    values = None if indices is None else indices.const_value
    counts = values is not None and np.array_equal(values.numpy(), np.arange(keys))
    if not counts or length is None or length.dtype != ir.DataType.INT64:
        return None
    return length if _sizes(length) == (1,) else None


def _sizes(value: ir.Value) -> tuple[int, ...]:
    return () if value.shape is None else tuple(value.shape.numpy())


def _reshaped(tape: ir.tape.Tape, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return tape.op("Reshape", [value, _constant(tape, shape)])


def _constant(tape: ir.tape.Tape, sizes: Sequence[int]) -> ir.Value:
    return tape.op("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
