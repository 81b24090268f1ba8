"""Inductor options that write each state as soon as its old value has been read.

By default inductor writes all states at the end of a call and keeps their new values until then:
1.9 GB in the Wan decoder at 480x832. Its passes that reorder operations are off. They assume that a
call can free its inputs, so they would read, and copy, the old values of all states at the start.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def write_early(graph: fx.Graph) -> None:
    """Moves each copy to an input right behind the last operation that reads the old value."""
    inputs = graph.find_nodes(op="placeholder")
    for copy in graph.find_nodes(op="call_function", target=aten.copy_.default):
        state, value = copy.args[:2]
        if state.op != "placeholder" or copy.users:
            continue
        if value.target is aten.copy.default and value.args[0] is state and len(value.users) == 1:
            copy.args = (state, value.args[1])  # It reads only the state's layout.
            graph.erase_node(value)
        before = {inputs[-1], copy.args[1], *_readers(state)} - {copy}
        if graph.output_node() in before:
            continue  # A view of the old value is returned.
        max(before).append(copy)  # Nodes compare by their places, also after a move.


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the nodes that read a tensor or a view of it."""
    for user in node.users:
        yield user
        schema = getattr(user.target, "_schema", None)  # A getitem has none.
        if schema is None or any(each.alias_info is not None for each in schema.returns):
            yield from _readers(user)


INDUCTOR: Mapping[str, Any] = {
    "post_grad_custom_post_pass": write_early,
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
}
"""Options of inductor for a program whose states take much of its memory."""
