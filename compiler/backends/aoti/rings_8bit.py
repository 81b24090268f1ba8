"""Rings of 8 bits as a Hopper GPU has them, in place of calls of ``vidc::fake_quantize``.

A quantized program rounds what it writes to a ring of 16 bits, and the queries that attend to it.
Here the ring itself becomes one of 8 bits: ``qk_norm_rope_ring_write_static`` writes it, values
transposed, and ``ring_attention_8bit`` attends to it. A layer that writes its ring and attends to
nothing, as the last one of a clean pass, has no call to fuse with: it writes by operations that a
compiler fuses with those before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from vidc.compiler.quantize.rings import layer_of
from vidc.exporters.lowering import insert
from vidc.exporters.program import argument_placeholders, weight_names
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring import ring_attention, ring_slots, ring_write
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.quantize import quantize
from vidc.plugins.signature import Rounding, Signature
from vidc.plugins.transposed_values import GROUP

OPERATORS = ("qk_norm_rope_ring_write_static", "ring_attention_8bit")
_FUNCTIONALISED = torch.ops.higher_order.auto_functionalized_v2
_TRANSPOSED = (0, 2, 3, 1)
"""The axes of values as the ring has them, of those of the component."""
_READ = ("qkv", "query_weight", "key_weight", "cos", "sin", "position")
_DTYPES = {dtype_name(dtype): dtype for dtype in (torch.float8_e4m3fn, torch.int8)}


@dataclass(frozen=True)
class Rounded:
    """How one state is rounded: the placeholders of its scale and mean, and the dtype."""

    scale: fx.Node
    mean: fx.Node | None
    dtype: torch.dtype
    transposed: bool
    """Whether it holds values."""


def is_rounded(program: ExportedProgram) -> bool:
    """Whether a program has rings in 8 bits."""
    return bool(program.graph.find_nodes(op="call_function", target=fake_quantize))


def take_rounding(program: ExportedProgram, signature: Signature) -> dict[fx.Node, Rounded]:
    """Removes every call of ``vidc::fake_quantize``; how the states are rounded, by placeholder.

    What looks for the calls of a layer then finds them as they are in 16 bits.
    """
    found = {
        cache: Rounded(scale, mean, _DTYPES[dtype], place[1] == "v")
        for cache, place, (_, scale, mean, dtype) in _rounded_writes(program, signature)
    }
    for node in program.graph.find_nodes(op="call_function", target=fake_quantize):
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    program.graph_module.recompile()
    return found


def kept_states(program: ExportedProgram, signature: Signature) -> Signature:
    """A component's signature with the rings in 8 bits that its program asks for.

    Args:
        program: quantized, not lowered.
        signature: the component's.
    """
    names, states = weight_names(program), {}
    specs = dict(zip(argument_placeholders(program), signature.arguments, strict=True))
    for cache, place, (_, scale, mean, dtype) in _rounded_writes(program, signature):
        transposed = place[1] == "v"
        lacks = None if mean is None else names[mean.name]
        rounding = Rounding(names[scale.name], lacks, transposed)
        spec = replace(specs[cache], dtype=dtype, rounding=rounding)
        states[spec.name] = spec.rearranged(_TRANSPOSED) if transposed else spec
    return replace(signature, tensors=tuple(states.get(t.name, t) for t in signature.tensors))


def _rounded_writes(
    program: ExportedProgram, signature: Signature
) -> Iterator[tuple[fx.Node, tuple[str, str], Any]]:
    """The states whose writes are rounded, where they belong, and how they are rounded."""
    specs = dict(zip(argument_placeholders(program), signature.arguments, strict=True))
    for node in program.graph.find_nodes(op="call_function", target=_FUNCTIONALISED):
        update = node.kwargs.get("update")
        if node.args[0] is ring_write and update.target is fake_quantize:
            (cache,) = node.kwargs["_all_bases"]
            place = layer_of(specs[cache].name)
            assert place is not None
            yield cache, place, update.args


def lower_rings(
    program: ExportedProgram, states: dict[fx.Node, Rounded], left: Iterable[str]
) -> tuple[str, ...]:
    """Makes states ones of 8 bits, with what writes them and attends to them.

    Args:
        program: with the fused operators' calls; changed in place.
        states: what ``take_rounding`` returned.
        left: why a call was not fused.

    Returns:
        Names of the operators that it calls now, besides.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a ring that is attended to has no fused write.
        UsageError: ``VIDC-KERNEL-ARGUMENT``, no kernel takes its sizes.
    """
    if not states:
        return ()
    graph, lowering = program.graph, _Lowering(program, states)
    for node in graph.find_nodes(op="call_function", target=_FUNCTIONALISED):
        bases = node.kwargs["_all_bases"]
        if any(cache in states for cache in bases):
            if node.args[0] is qk_norm_rope_ring_write:
                lowering.fused(node)
            else:
                lowering.alone(node, left)
    for node in graph.find_nodes(op="call_function", target=ring_attention):
        lowering.attend(node)
    renamed = lowering.renamed
    for spec in program.graph_signature.output_specs:
        if spec.arg.name in renamed:
            spec.arg = TensorArgument(name=renamed[spec.arg.name])
    program.graph_module.recompile()
    return (
        OPERATORS
        if program.graph.find_nodes(op="call_function", target=ring_attention_8bit)
        else ()
    )


class _Lowering:
    def __init__(self, program: ExportedProgram, states: dict[fx.Node, Rounded]) -> None:
        self.graph = program.graph
        self.states = states
        self.renamed: dict[str, str] = {}
        self._attended: dict[fx.Node, tuple[fx.Node, fx.Node, fx.Node]] = {}

    def fused(self, node: Any) -> None:
        """``qk_norm_rope_ring_write`` to its form in 8 bits."""
        given = node.kwargs
        keys, values = given["_all_bases"]
        key, value = self.states[keys], self.states[values]
        self._narrow(keys, transposed=False)
        self._narrow(values, transposed=True)
        given = {
            **{name: given[name] for name in _READ}, "key_cache": keys, "value_cache": values,
            "key_scale": key.scale, "value_scale": value.scale, "key_mean": key.mean,
            "sink": given["sink"], "eps": given["eps"], "value_transposed": True,
            "quantize_query": True,
        }  # fmt: skip
        fakes = [n.meta["val"] if isinstance(n, fx.Node) else n for n in given.values()]
        with keys.meta["val"].fake_mode:
            results = qk_norm_rope_ring_write_static(*fakes)
        results = (*results, keys.meta["val"], values.meta["val"])
        with self.graph.inserting_before(node):
            call = _called(self.graph, _FUNCTIONALISED, (qk_norm_rope_ring_write_static,), results)
            call.kwargs = {
                **{n: v for n, v in given.items() if n not in ("key_cache", "value_cache")},
                "_key_cache_base_index": 0, "_value_cache_base_index": 1,
                "_all_bases": [keys, values],
            }  # fmt: skip
            made = [
                _called(self.graph, getitem, (call, index), result)
                for index, result in enumerate(results)
            ]
        query, scale, *caches = made
        self._attended[query] = (scale, keys, values)
        self._replace(node, {0: query, 1: caches[0], 2: caches[1]})

    def alone(self, node: Any, left: Iterable[str]) -> None:
        """``ring_write`` to operations that write 8 bits."""
        (cache,) = node.kwargs["_all_bases"]
        state = self.states[cache]
        if any(user.target is ring_attention for result in node.users for user in result.users):
            raise BuildError(
                "VIDC-QUANTIZE-GRAPH",
                f"{cache.name} is to be in 8 bits, and what is written to it is not one call: "
                f"{'; '.join(left) or 'fused operators are not called'}",
                "leave its [[attention]] out of the recipe",
            )
        self._narrow(cache, state.transposed)
        given = (cache, *(node.kwargs[name] for name in ("update", "position", "sink")))
        with self.graph.inserting_before(node):
            result = insert(
                self.graph, _written, (*given, state.scale, state.mean, state.transposed)
            )
        self._replace(node, {1: result})

    def attend(self, node: Any) -> None:
        """``ring_attention`` to its form in 8 bits, where its ring is."""
        query, keys, values, valid = node.args
        if query not in self._attended:
            return
        scale, key_state, value_state = self._attended[query]
        key, value = self.states[key_state], self.states[value_state]
        _, head_dim = query.meta["val"].shape[2:]
        dtype = dtype_name(node.meta["val"].dtype)
        with self.graph.inserting_before(node):
            by_channel = insert(self.graph, _by_channel, (value.scale, head_dim))
            nothing = insert(self.graph, torch.zeros_like, (by_channel,))
            given = (query, scale, keys, values, key.scale, by_channel, nothing, valid, dtype)
            attended = insert(self.graph, ring_attention_8bit, given)
        node.replace_all_uses_with(attended)
        self.graph.erase_node(node)

    def _narrow(self, cache: fx.Node, transposed: bool) -> None:
        value, dtype = cache.meta["val"], self.states[cache].dtype
        shape = [value.shape[axis] for axis in _TRANSPOSED] if transposed else value.shape
        with value.fake_mode:
            cache.meta["val"] = torch.empty(shape, dtype=dtype)

    def _replace(self, node: Any, results: dict[int, Any]) -> None:
        for user in tuple(node.users):
            # A program from a file has a user for a result that is none.
            if user.users:
                result = results[user.args[1]]
                self.renamed[user.name] = result.name
                user.replace_all_uses_with(result)
            self.graph.erase_node(user)
        self.graph.erase_node(node)


def _called(graph: fx.Graph, target: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    node = graph.call_function(target, arguments)
    node.meta["val"] = value
    return node


def _by_channel(scale: Tensor, head_dim: int) -> Tensor:
    """``[H]`` to ``[H, D]``."""
    return scale[:, None].expand(-1, head_dim).contiguous()


def _written(
    cache: Tensor,
    update: Tensor,
    position: Tensor,
    sink: int,
    scale: Tensor,
    mean: Tensor | None,
    transposed: bool,
) -> Tensor:
    """A ring in 8 bits with a block's keys or values, ``[B, T, H, D]``, in their slots."""
    values = update.float() if mean is None else update.float() - mean
    # As bytes: PyTorch has no writes by index for FP8 on a CPU.
    stored = quantize(values, scale[:, None], cache.dtype).view(torch.int8)
    ring = cache.view(torch.int8)
    ring = ring.permute(0, 3, 1, 2) if transposed else ring
    slots = ring_slots(position, update.shape[1], ring.shape[1], sink)
    if transposed:
        # What ``stored_at`` looks up, as arithmetic: traced code keeps no table.
        of_group = slots % GROUP
        slots = slots - of_group + of_group % 8 // 2 * 4 + of_group // 8 * 2 + of_group % 2
    rows = torch.arange(cache.shape[0], device=cache.device)
    ring = ring.index_put((rows[:, None], slots[None]), stored)
    ring = ring.permute(0, 2, 3, 1).contiguous() if transposed else ring
    return ring.view(cache.dtype)
