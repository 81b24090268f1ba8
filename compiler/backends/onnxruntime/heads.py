"""Attention for a CPU over ``[B, T, H D]``, without transposes and without a mask of the ring.

ONNX Runtime's kernel reads heads where they lie in a token, and writes them there. For a boolean
mask it first writes the mask in float32 and copies it for each head; given the number of valid keys
it only fills the scores of the others. The result is bit for bit the same.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

_HEADS_FIRST = (0, 2, 1, 3)
"""``[B, T, H, D]`` to ``[B, H, T, D]`` and back."""
_OPERANDS = 3
"""Query, key and value, the first inputs of Attention."""
_MASK = 3


def use_packed_heads(model: ir.Model) -> int:
    """Rewrites attention whose queries, keys, values and result are transposed, in place.

    Returns:
        The number of Attention nodes that were rewritten.
    """
    places = [node for node in model.graph if node.op_type == "Attention" and _is_transposed(node)]
    for node in places:
        _rewrite(model.graph, node)
    common.RemoveUnusedNodesPass()(model)
    return len(places)


def _is_transposed(attention: ir.Node) -> bool:
    """Returns True for attention without a cache whose operands and result are transposed."""
    operands, others = attention.inputs[:_OPERANDS], attention.inputs[_MASK + 1 :]
    (result,) = attention.outputs[:1]
    uses = result.uses()
    return (
        len(attention.outputs) == 1
        and not any(others)
        and all(value is not None and _turns(value.producer()) for value in operands)
        and not result.is_graph_output()
        and len(uses) == 1
        and _turns(uses[0].node)
    )


def _turns(node: ir.Node | None) -> bool:
    return (
        node is not None
        and node.op_type == "Transpose"
        and tuple(node.attributes["perm"].as_ints()) == _HEADS_FIRST
        and (shape := node.outputs[0].shape) is not None
        and shape.is_static()
    )


def _rewrite(graph: ir.Graph, attention: ir.Node) -> None:
    tape = ir.tape.Tape()
    query, key, value = (_source(operand) for operand in attention.inputs[:_OPERANDS])
    packed = [_reshaped(tape, each, (*_sizes(each)[:2], -1)) for each in (query, key, value)]
    mask = attention.inputs[_MASK] if len(attention.inputs) > _MASK else None
    length = None if mask is None else _valid_length(mask)
    inputs = [*packed, mask]
    if length is not None:
        lengths = tape.op("Expand", [length, _constant(tape, _sizes(query)[:1])])
        inputs = [*packed, None, None, None, lengths]
    heads = {"q_num_heads": _sizes(query)[2], "kv_num_heads": _sizes(key)[2]}
    result = tape.op("Attention", inputs, {**attention.attributes, **heads})
    transpose = attention.outputs[0].uses()[0].node
    (turned,) = transpose.outputs
    result = _reshaped(tape, result, _sizes(turned))
    ir.convenience.replace_nodes_and_values(
        graph, transpose, [attention, transpose], tape.nodes, [turned], [result]
    )


def _valid_length(mask: ir.Value) -> ir.Value | None:
    """Returns the number of valid keys, int64 ``[1]``, if a mask says no more; else None.

    Such a mask compares the indices of all keys with the number, and is then expanded to queries.
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
    return length if counts and length is not None and _sizes(length) == (1,) else None


def _source(operand: ir.Value | None) -> ir.Value:
    """Returns the input of the Transpose that made an operand."""
    assert operand is not None
    node = operand.producer()
    assert node is not None
    (source,) = node.inputs
    assert source is not None
    return source


def _sizes(value: ir.Value) -> tuple[int, ...]:
    return () if value.shape is None else tuple(value.shape.numpy())


def _reshaped(tape: ir.tape.Tape, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return tape.op("Reshape", [value, _constant(tape, shape)])


def _constant(tape: ir.tape.Tape, sizes: Sequence[int]) -> ir.Value:
    return tape.op("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
