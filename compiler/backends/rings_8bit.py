"""Lowering of 8-bit rings to calls of vidc's kernels.

A program quantizes the keys and values that it writes by ``vidc::quantize_kv``, dequantizes the
ring that it reads, and fake-quantizes the queries. The first pass, ``pop_rounding``, removes all of
that, so that the passes for 16-bit programs match. The second one, ``lower_rings``, makes the ring
8-bit again, in the kernels' layout: ``qk_norm_rope_ring_write_static`` writes it, values
transposed, and ``ring_attention_8bit`` reads it.

Two writes stay plain operations for inductor, which fuses them itself: that of a ring with
high-precision queries, and that of a layer without attention, such as the last layer of a clean
pass. TensorRT gets plugins for both.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from vidc.compiler.backends.fused_calls import called
from vidc.exporters.lowering import FUNCTIONALIZED, insert
from vidc.exporters.program import argument_placeholders
from vidc.plugins.arguments import dtype_name
from vidc.plugins.engine_operators import RINGS_8BIT
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.ring import ring_attention, ring_slots, ring_write
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.quantize import quantize
from vidc.plugins.signature import DTYPES, Signature, TensorSpec
from vidc.plugins.transposed_values import GROUP, padded_slots

_TRANSPOSED = (0, 2, 3, 1)
"""Permutation of a value ring's axes from the component's to the kernel's layout."""
_READ = ("qkv", "query_weight", "key_weight", "cos", "sin", "position")
_OPERAND = 4
"""Position of the argument of ``quantize_kv`` that names an operand of quantized attention."""
_VALUES = "values"


@dataclass(frozen=True)
class StateQuantization:
    """Quantization of one state: placeholders of its scale and mean, and its dtype."""

    scale: fx.Node
    mean: fx.Node | None
    dtype: torch.dtype
    transposed: bool
    """True for values of attention with quantized queries, which are stored transposed."""
    computes: bool = True
    """True if queries are quantized."""


def has_quantized_rings(program: ExportedProgram) -> bool:
    """Returns True if a program has 8-bit rings with quantized queries."""
    return any(_writes(program))


def pop_rounding(program: ExportedProgram, every: bool = False) -> dict[fx.Node, StateQuantization]:
    """Removes the quantization of a program's 8-bit rings with quantized queries.

    Later passes then match a layer's calls as in a 16-bit program.

    Args:
        program: a program; changed in place.
        every: True for rings with high-precision queries as well.

    Returns:
        The removed quantization of each state, by the state's placeholder.
    """
    graph, found = program.graph, {}
    for write, cache in [*_writes(program, every)]:
        quantized = write.kwargs["update"]
        update, scale, mean, dtype, *operand = quantized.args
        found[cache] = StateQuantization(
            scale, mean, DTYPES[dtype], transposed=operand == [_VALUES], computes=bool(operand)
        )
        write.kwargs = {**write.kwargs, "update": update}
        graph.erase_node(quantized)
        _widen(cache, write, update.meta["val"].dtype)
    for node in graph.find_nodes(op="call_function", target=dequantize_kv):
        if _ring_of(node) in found:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=fake_quantize):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    program.graph_module.recompile()
    return found


def quantized_signature(program: ExportedProgram, signature: Signature) -> Signature:
    """Returns a component's signature with value rings in the layout of ``ring_attention_8bit``.

    Value rings of attention with quantized queries become ``[B, H, D, S]``, with S slots padded to
    a multiple of 16. Other rings stay as they are.

    Args:
        program: the component's program, before ``pop_rounding``.
        signature: the component's signature.
    """
    specs = dict(zip(argument_placeholders(program), signature.arguments, strict=True))
    values = {
        specs[cache].name
        for write, cache in _writes(program)
        if write.kwargs["update"].args[-1] == _VALUES
    }

    def stored(spec: TensorSpec) -> TensorSpec:
        if spec.name not in values:
            return spec
        assert spec.rounding is not None
        shape = _padded(spec.shape)
        rounding = replace(spec.rounding, reordered=True, padding=shape[1] - spec.shape[1])
        return replace(spec, shape=shape, rounding=rounding).rearranged(_TRANSPOSED)

    return replace(signature, tensors=tuple(map(stored, signature)))


def _writes(program: ExportedProgram, every: bool = False) -> Iterator[tuple[Any, fx.Node]]:
    """Yields the writes of quantized operands of attention, with the states they write.

    Args:
        program: a program.
        every: True to yield all writes of 8-bit rings.
    """
    for node in program.graph.find_nodes(op="call_function", target=FUNCTIONALIZED):
        update = node.kwargs.get("update")
        if node.args[0] is not ring_write or update.target is not quantize_kv:
            continue
        if every or len(update.args) > _OPERAND:
            (cache,) = node.kwargs["_all_bases"]
            yield node, cache


def _ring_of(node: Any) -> Any:
    """Returns the state that a ``dequantize_kv`` reads after its write."""
    (cache,) = node.args[0].args[0].kwargs["_all_bases"]
    return cache


def _widen(cache: fx.Node, write: fx.Node, dtype: torch.dtype) -> None:
    value = cache.meta["val"]
    with value.fake_mode:
        wide = torch.empty(value.shape, dtype=dtype)
    cache.meta["val"], write.meta["val"] = wide, (None, wide)
    for result in write.users:
        if result.args[1]:
            result.meta["val"] = wide


def lower_rings(
    program: ExportedProgram, states: dict[fx.Node, StateQuantization], left: Iterable[str]
) -> tuple[str, ...]:
    """Makes states 8-bit, and replaces the calls that write and read them.

    Args:
        program: the program, with calls of fused operators; changed in place.
        states: result of ``pop_rounding``.
        left: reasons why calls were not fused.

    Returns:
        Names of the operators that the program calls in addition.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, attention reads a ring without a fused write.
        UsageError: ``VIDC-KERNEL-ARGUMENT``, no kernel supports its sizes.
    """
    if not states:
        return ()
    graph, lowering = program.graph, _Lowering(program, states)
    for node in graph.find_nodes(op="call_function", target=FUNCTIONALIZED):
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
        RINGS_8BIT
        if program.graph.find_nodes(op="call_function", target=ring_attention_8bit)
        else ()
    )


class _Lowering:
    def __init__(self, program: ExportedProgram, states: dict[fx.Node, StateQuantization]) -> None:
        self.graph = program.graph
        self.states = states
        self.renamed: dict[str, str] = {}
        self._attended: dict[fx.Node, tuple[fx.Node, fx.Node, fx.Node]] = {}
        self._scales: dict[fx.Node, fx.Node] = {}
        """Scales of written rings whose queries stay in high precision."""

    def fused(self, node: Any) -> None:
        """Replaces ``qk_norm_rope_ring_write`` by its 8-bit variant."""
        given = node.kwargs
        keys, values = given["_all_bases"]
        key, value = self.states[keys], self.states[values]
        self._narrow(keys, transposed=False)
        self._narrow(values, value.transposed)
        given = {
            **{name: given[name] for name in _READ}, "key_cache": keys, "value_cache": values,
            "key_scale": key.scale, "value_scale": value.scale, "key_mean": key.mean,
            "sink": given["sink"], "eps": given["eps"], "value_transposed": value.transposed,
            "quantize_query": key.computes,
        }  # fmt: skip
        fakes = [n.meta["val"] if isinstance(n, fx.Node) else n for n in given.values()]
        with keys.meta["val"].fake_mode:
            results = qk_norm_rope_ring_write_static(*fakes)
        results = (*results, keys.meta["val"], values.meta["val"])
        with self.graph.inserting_before(node):
            call = called(self.graph, FUNCTIONALIZED, (qk_norm_rope_ring_write_static,), results)
            call.kwargs = {
                **{n: v for n, v in given.items() if n not in ("key_cache", "value_cache")},
                "_key_cache_base_index": 0, "_value_cache_base_index": 1,
                "_all_bases": [keys, values],
            }  # fmt: skip
            made = [
                called(self.graph, getitem, (call, index), result)
                for index, result in enumerate(results)
            ]
        query, scale, *caches = made
        if key.computes:
            self._attended[query] = (scale, keys, values)
        else:
            self._scales |= {caches[0]: key.scale, caches[1]: value.scale}
        self._replace(node, {0: query, 1: caches[0], 2: caches[1]})

    def alone(self, node: Any, left: Iterable[str]) -> None:
        """Replaces ``ring_write`` by operations that write 8 bits."""
        (cache,) = node.kwargs["_all_bases"]
        state = self.states[cache]
        if any(user.target is ring_attention for result in node.users for user in result.users):
            raise BuildError(
                "VIDC-QUANTIZE-GRAPH",
                f"{cache.name} is to be in 8 bits, but its write is not fused: "
                f"{'; '.join(left) or 'fused operators are not called'}",
                "leave its [[attention]] out of the recipe",
            )
        window = cache.meta["val"].shape[1]
        self._narrow(cache, state.transposed)
        given = (cache, *(node.kwargs[name] for name in ("update", "position", "sink")))
        state_of = (state.scale, state.mean, state.transposed)
        with self.graph.inserting_before(node):
            result = insert(self.graph, _written, (*given, window, *state_of))
        self._replace(node, {1: result})

    def attend(self, node: Any) -> None:
        """Replaces ``ring_attention`` by its 8-bit variant if its ring is 8-bit."""
        query, keys, values, valid = node.args
        if query not in self._attended:
            self._restore(node)
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

    def _restore(self, node: Any) -> None:
        """Dequantizes the ring that attention with high-precision queries reads."""
        dtype = node.meta["val"].dtype
        for ring in node.args[1:3]:
            if ring in self._scales:
                value = ring.meta["val"].to(dtype)
                with self.graph.inserting_before(node):
                    given = (ring, self._scales[ring], dtype_name(dtype))
                    wide = called(self.graph, dequantize_kv, given, value)
                node.replace_input_with(ring, wide)

    def _narrow(self, cache: fx.Node, transposed: bool) -> None:
        value, dtype = cache.meta["val"], self.states[cache].dtype
        padded = _padded(value.shape)
        shape = [padded[axis] for axis in _TRANSPOSED] if transposed else value.shape
        with value.fake_mode:
            cache.meta["val"] = torch.empty(shape, dtype=dtype)

    def _replace(self, node: Any, results: dict[int, Any]) -> None:
        for user in tuple(node.users):
            # A loaded program has a user for the result None.
            if user.users:
                result = results[user.args[1]]
                self.renamed[user.name] = result.name
                user.replace_all_uses_with(result)
            self.graph.erase_node(user)
        self.graph.erase_node(node)


def _padded(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of a ring ``[B, S, H, D]`` with slots in whole groups."""
    batch, slots, *row = shape
    return (batch, padded_slots(slots), *row)


def _by_channel(scale: Tensor, head_dim: int) -> Tensor:
    """Expands ``[H]`` to ``[H, D]``."""
    return scale[:, None].expand(-1, head_dim).contiguous()


def _written(
    cache: Tensor,
    update: Tensor,
    position: Tensor,
    sink: int,
    window: int,
    scale: Tensor,
    mean: Tensor | None,
    transposed: bool,
) -> Tensor:
    """Writes a block's keys or values, ``[B, T, H, D]``, to the slots of an 8-bit ring.

    ``window`` is the number of slots without padding.
    """
    values = update.float() if mean is None else update.float() - mean
    # As bytes: PyTorch has no index_put for FP8 on a CPU.
    stored = quantize(values, scale[:, None], cache.dtype).view(torch.int8)
    ring = cache.view(torch.int8)
    ring = ring.permute(0, 3, 1, 2) if transposed else ring
    slots = ring_slots(position, update.shape[1], window, sink)
    if transposed:
        # The table of ``stored_at`` as arithmetic, because traced code cannot hold a table.
        of_group = slots % GROUP
        slots = slots - of_group + of_group % 8 // 2 * 4 + of_group // 8 * 2 + of_group % 2
    rows = torch.arange(cache.shape[0], device=cache.device)
    ring = ring.index_put((rows[:, None], slots[None]), stored)
    ring = ring.permute(0, 2, 3, 1).contiguous() if transposed else ring
    return ring.view(cache.dtype)
