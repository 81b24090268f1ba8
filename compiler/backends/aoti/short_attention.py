"""Self-attention over a few tokens, such as a clip's frames, by an operator made for it.

Attention kernels for long sequences fill a tile of 64 or 128 queries and as many keys, most of it
padding here, and start a block for each.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.exporters.lowering import insert
from vidc.plugins.ops.temporal_attention import HEAD_DIM, MOST_FRAMES, temporal_attention

aten = torch.ops.aten
OPERATOR = "temporal_attention"


def fused_operators(program: ExportedProgram) -> tuple[str, ...]:
    """Returns the names of the operators that ``use_short_attention`` calls."""
    return (OPERATOR,) if any(_calls(program)) else ()


def use_short_attention(program: ExportedProgram) -> tuple[str, ...]:
    """Replaces self-attention over at most 32 tokens in 16 bits with heads of 64, in place.

    Returns:
        Names of the operators that the program calls for it.
    """
    graph = program.graph
    found = list(_calls(program))
    for node in found:
        with graph.inserting_before(node):
            result = insert(graph, _attention, node.args)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return (OPERATOR,) if found else ()


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attends over T of ``[N, H, T, D]``."""
    # Projections are [N, T, H, D] in memory: nothing is copied.
    q, k, v = (x.transpose(1, 2).contiguous().unsqueeze(2) for x in (query, key, value))
    result: Tensor = temporal_attention(q, k, v)
    return result.squeeze(2).transpose(1, 2)


def _calls(program: ExportedProgram) -> Iterator[fx.Node]:
    target = aten.scaled_dot_product_attention.default
    for node in program.graph.find_nodes(op="call_function", target=target):
        given: Any = node.args
        if len(given) != 3 or node.kwargs:
            continue
        query, key, value = (each.meta["val"] for each in given)
        if (
            query.dim() == 4
            and query.shape == key.shape == value.shape
            and query.shape[2] <= MOST_FRAMES
            and query.shape[3] == HEAD_DIM
            and query.dtype in (torch.float16, torch.bfloat16)
        ):
            yield node
