"""Calls of vidc's fused operators in a program, in place of the operations that they fuse."""

from collections.abc import Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from vidc.exporters.lowering import FUNCTIONALIZED
from vidc.exporters.program import weight_names
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.quantize_kv import quantize_kv
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.ops.ring import ring_write

_LINEARS: Mapping[Any, int] = {torch.ops.aten.linear.default: 2, quantized_linear: 3}
"""Linear operators, with the number of arguments after the input that packing concatenates.

The arguments after these, such as the input's scale, are shared.
"""
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)


def call_gelus(program: ExportedProgram) -> tuple[str, ...]:
    """Replaces GELU by ``gelu_quantize``, which writes the dtype that it reads.

    Args:
        program: an exported program; changed in place.

    Returns:
        Reasons why calls were not replaced, a line each.
    """
    left: dict[str, None] = {}
    for node in gelus(program.graph):
        try:
            _call_gelu(program.graph, node)
        except UsageError as error:
            left[error.message] = None
    program.graph_module.recompile()
    return tuple(left)


def call_ring_writes(program: ExportedProgram) -> tuple[str, ...]:
    """Fuses ring writes to ``qk_norm_rope_ring_write`` over the concatenated projections.

    Weights are not packed, so that engines read them by their own names.

    Args:
        program: an exported program; changed in place.

    Returns:
        Reasons why calls were not fused, a line each.

    Raises:
        ValueError: a ``qk_norm_rope`` is not between projections and ring writes.
    """
    left: dict[str, None] = {}
    calls = program.graph.find_nodes(op="call_function", target=qk_norm_rope)
    for call in [RingWrite(program, node) for node in calls]:
        try:
            call.lay_side_by_side()
        except UsageError as error:
            left[error.message] = None
    program.graph_module.recompile()
    return tuple(left)


def without_queries(node: Any) -> bool:
    """Returns True if a ``qk_norm_rope`` has keys alone, which stand in for its queries."""
    return node.args[0] is node.args[1]


def to_stored(node: Any) -> bool:
    """Returns True if the results of ``qk_norm_rope`` are stored in 8 bits."""
    return any(user.target is quantize_kv for result in node.users for user in result.users)


def gelus(graph: fx.Graph) -> list[Any]:
    """Returns a graph's GELUs with the tanh approximation."""
    nodes: list[Any] = graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)
    return [node for node in nodes if node.kwargs.get("approximate") == "tanh"]


def _call_gelu(graph: fx.Graph, node: Any) -> None:
    """Replaces a GELU; raises UsageError if the operator does not support the tensor."""
    source = node.args[0]
    given = source.meta["val"]
    dtype = dtype_name(given.dtype)
    with given.fake_mode:
        value = gelu_quantize(given, dtype)
    with graph.inserting_before(node):
        node.replace_all_uses_with(called(graph, gelu_quantize, (source, dtype), value))
    graph.erase_node(node)


class RingWrite:
    """A call of ``qk_norm_rope`` with its projections and ring writes.

    Args:
        program: the program.
        node: the call.

    Raises:
        ValueError: the calls around it are not those of a self-attention.
    """

    def __init__(self, program: ExportedProgram, node: Any) -> None:
        self.program = program
        self.graph = program.graph
        self.node = node
        query, key, *given, _, self.eps = node.args
        self.given = given
        results = {user.args[1]: user for user in node.users}
        self.query, self.keys = results.get(0), results[1]  # Nobody may read the queries.
        _require(_is_linear(query) and _is_linear(key), node, "queries and keys are projections")
        source = query.args[0]
        writes: list[Any] = [
            write
            for write in self.graph.find_nodes(op="call_function", target=FUNCTIONALIZED)
            if write.args[0] is ring_write
        ]
        key_writes = [w for w in writes if w.kwargs["update"] is self.keys]
        value_writes = [
            w
            for w in writes
            if _is_linear(origin := _unviewed(w.kwargs["update"])) and origin.args[0] is source
        ]
        _require(len(key_writes) == len(value_writes) == 1, node, "one ring takes each")
        self.writes = (*key_writes, *value_writes)
        self.position, self.sink = (self.writes[0].kwargs[name] for name in ("position", "sink"))
        self.caches = [cache for write in self.writes for cache in write.kwargs["_all_bases"]]
        _require(all(cache.op == "placeholder" for cache in self.caches), node, "rings are states")
        self.projections = (query, key, _unviewed(value_writes[0].kwargs["update"]))
        _require(key.args[0] is source, node, "one tensor is projected")

    @property
    def apart(self) -> str | None:
        """Reason why the projections cannot be packed, or None."""
        alike = {
            (node.target, *node.args[1 + _LINEARS[node.target] :]) for node in self.projections
        }
        if len(alike) == 1:
            return None
        return "projections to queries, keys and values in different formats are not packed"

    def fuse(self) -> dict[str, tuple[str, ...]]:
        """Fuses the call with packed weights.

        Returns:
            Names of the packed weights, each with the names of the weights that it concatenates.

        Raises:
            UsageError: the operator does not support the sizes; the program is unchanged.
        """
        rows, queries = self._results()
        first = self.projections[0]
        packed = dict(self._pack(index) for index in self._packed_arguments())
        with self.graph.inserting_before(self.node):
            self._call(called(self.graph, first.target, first.args, rows), queries)
        packed_away = [
            other.args[index]
            for other in self.projections[1:]
            for index in self._packed_arguments()
        ]
        for node in (*self.projections, *packed_away):
            self.graph.erase_node(node)
        return packed

    def lay_side_by_side(self) -> None:
        """Fuses the call, which then takes the concatenated results of the projections.

        Raises:
            UsageError: the operator does not support the sizes; the program is unchanged.
        """
        rows, queries = self._results()
        # After all three: values may be projected after queries and keys are rotated.
        order = {node: index for index, node in enumerate(self.graph.nodes)}
        with self.graph.inserting_before(max(self.writes, key=order.__getitem__)):
            laid = (list(self.projections), -1)
            self._call(called(self.graph, torch.ops.aten.cat.default, laid, rows), queries)

    def _results(self) -> tuple[Tensor, Tensor]:
        """Returns fake results of the packed projections and of the operator."""
        rows = self.projections[0].meta["val"]
        every = [node.meta["val"] for node in (*self.given, self.position, *self.caches)]
        with rows.fake_mode:
            packed_rows = rows.new_empty((*rows.shape[:2], 3 * rows.shape[2]))
            return packed_rows, qk_norm_rope_ring_write(packed_rows, *every, self.sink, self.eps)

    def _call(self, qkv: fx.Node, queries: Tensor) -> None:
        """Inserts the operator's call and replaces what it fuses."""
        names = [a.name for a in qk_norm_rope_ring_write._schema.arguments if not a.is_write]
        values = (queries, *(cache.meta["val"] for cache in self.caches))
        call = called(self.graph, FUNCTIONALIZED, (qk_norm_rope_ring_write,), values)
        read = (qkv, *self.given, self.position, self.sink, self.eps)
        call.kwargs = {
            **dict(zip(names, read, strict=True)),
            "_key_cache_base_index": 0,
            "_value_cache_base_index": 1,
            "_all_bases": self.caches,
        }
        results = [
            called(self.graph, getitem, (call, index), value) for index, value in enumerate(values)
        ]
        self._replace(results)

    def _packed_arguments(self) -> list[int]:
        first = self.projections[0]
        end = min(1 + _LINEARS[first.target], len(first.args))
        return [index for index in range(1, end) if first.args[index] is not None]

    def _pack(self, argument: int) -> tuple[str, tuple[str, ...]]:
        """Packs one argument of the three projections; returns its name and those of its parts."""
        nodes = [projection.args[argument] for projection in self.projections]
        names = weight_names(self.program)
        parts = tuple(names[node.name] for node in nodes)
        _require(all(len(node.users) == 1 for node in nodes), self.node, "weights are its own")
        layer, _, kind = parts[0].rpartition(".")
        name = f"{layer.rpartition('.')[0]}.to_qkv.{kind}"
        values = [node.meta["val"] for node in nodes]
        with values[0].fake_mode:
            nodes[0].meta["val"] = torch.cat(values)
        state = self.program.state_dict
        for part in parts:
            del state[part]
        whole = torch.empty(nodes[0].meta["val"].shape, dtype=values[0].dtype)
        state[name] = nn.Parameter(whole, requires_grad=False)
        specs = self.program.graph_signature.input_specs
        for spec in [spec for spec in specs if spec.target in parts]:
            if spec.target == parts[0]:
                spec.target = name
            else:
                specs.remove(spec)
        return name, parts

    def _replace(self, results: list[fx.Node]) -> None:
        """Replaces the queries and both rings by the operator's results."""
        queries, *caches = results
        if self.query is not None:
            self.query.replace_all_uses_with(queries)
        renamed = {}
        for write, cache in zip(self.writes, caches, strict=True):
            for user in tuple(write.users):
                renamed[user.name] = cache.name
                user.replace_all_uses_with(cache)
                self.graph.erase_node(user)
        for spec in self.program.graph_signature.output_specs:
            if spec.arg.name in renamed:
                spec.arg = TensorArgument(name=renamed[spec.arg.name])
        *_, value = self.projections
        view = self.writes[1].kwargs["update"]
        for node in (*self.writes, self.query, self.keys, self.node):
            if node is not None:
                self.graph.erase_node(node)
        while view is not value:
            view, erased = view.args[0], view
            self.graph.erase_node(erased)


def called(graph: fx.Graph, target: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    """Adds a call to a graph, with ``value`` as its fake result."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = value
    return node


def _unviewed(node: Any) -> Any:
    """Returns the source of a chain of views."""
    while isinstance(node, fx.Node) and node.target in _VIEWS:
        node = node.args[0]
    return node


def _is_linear(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target in _LINEARS


def _require(holds: bool, node: fx.Node, what: str) -> None:
    if not holds:
        raise ValueError(f"{node.name} cannot be fused: expected that {what}")
