"""Quantized rings of a component's ExportedProgram: matching, fake quantization and checks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from vidc.compiler.quantize.attention import QuantizedAttention
from vidc.exporters.lowering import insert
from vidc.exporters.program import argument_placeholders, weight_names
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.ring import ring_attention, ring_write
from vidc.plugins.signature import Signature

_FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2
_STATES = {"ring.k.": "k", "ring.v.": "v"}


@dataclass(frozen=True)
class RingTensors:
    """Quantization of one ring: names of its scales and mean, dtype and use."""

    key_scale: str
    value_scale: str
    key_mean: str | None
    dtype: str
    attends: bool
    """True if the program attends to it with quantized queries."""
    stored: bool = False
    """True if the state is 8-bit and queries stay in high precision."""


def ring_tensors(group: str, attention: QuantizedAttention, attends: bool) -> RingTensors:
    """Returns the quantization of a self-attention's ring.

    Args:
        group: the weights group.
        attention: the quantized self-attention.
        attends: True if the component has its attention.
    """
    computes = attention.format.computes
    mean = attention.key_mean
    return RingTensors(
        f"{group}.{attention.key_scale}",
        f"{group}.{attention.value_scale}",
        None if mean is None else f"{group}.{mean}",
        attention.dtype,
        attends and computes,
        not computes,
    )


def layer_of(state: str) -> tuple[str, str] | None:
    """Returns the layer of a ring's state and its part, ``k`` or ``v``; None for other states."""
    for prefix, part in _STATES.items():
        if state.startswith(prefix):
            return f"blocks.{state.removeprefix(prefix)}.attn1", part
    return None


def asked_rings(
    program: ExportedProgram,
    signature: Signature,
    group: str,
    attentions: Mapping[str, QuantizedAttention],
) -> dict[str, RingTensors]:
    """Returns the quantization of the rings that a component has, by layer."""
    found = rings(program, signature)
    return {
        layer: ring_tensors(group, attentions[layer], bool(ring.attentions))
        for layer, ring in found.items()
        if layer in attentions
    }


@dataclass
class Ring:
    """States of one ring, and the calls that write it and attend to it."""

    caches: dict[str, fx.Node]
    writes: dict[str, fx.Node]
    attentions: list[fx.Node]


def rings(program: ExportedProgram, signature: Signature) -> dict[str, Ring]:
    """Returns the rings of a program, by layer."""
    arguments = zip(signature.arguments, argument_placeholders(program), strict=True)
    places = {node: place for spec, node in arguments if (place := layer_of(spec.name))}
    found: dict[str, Ring] = {}
    for node, (layer, part) in places.items():
        found.setdefault(layer, Ring({}, {}, [])).caches[part] = node
    written: dict[fx.Node, tuple[str, str]] = {}
    for write in program.graph.find_nodes(op="call_function", target=_FUNCTIONALIZED):
        if write.args[0] is ring_write:
            (cache,) = write.kwargs["_all_bases"]
            layer, part = places[cache]
            found[layer].writes[part] = write
            written |= dict.fromkeys(write.users, (layer, part))
    for node in program.graph.find_nodes(op="call_function", target=ring_attention):
        layer, _ = written[_as_written(node.args[1])]
        found[layer].attentions.append(node)
    return found


def _as_written(keys: Any) -> fx.Node:
    """Returns the ring behind the keys of an attention."""
    node: fx.Node = keys.args[0] if keys.target is dequantize_kv else keys
    return node


def round_rings(
    program: ExportedProgram,
    signature: Signature,
    asked: Mapping[str, RingTensors],
    placeholder: Callable[[str], fx.Node],
) -> None:
    """Fake-quantizes the writes of rings and their queries by ``vidc::fake_quantize``.

    ``store_rings`` handles rings that are ``stored``.

    Args:
        program: an exported program; changed in place.
        signature: the component's signature.
        asked: result of ``asked_rings``.
        placeholder: returns the placeholder of a weight, and adds it if necessary.
    """
    graph = program.graph
    for layer, ring in rings(program, signature).items():
        tensors = asked.get(layer)
        if tensors is None or tensors.stored:
            continue
        mean = None if tensors.key_mean is None else placeholder(tensors.key_mean)
        keys = (placeholder(tensors.key_scale), mean)
        values = (placeholder(tensors.value_scale), None)
        for part, given in (("k", keys), ("v", values)):
            write = ring.writes[part]
            with graph.inserting_before(write):
                update = insert(
                    graph, fake_quantize, (write.kwargs["update"], *given, tensors.dtype)
                )
            write.kwargs = {**write.kwargs, "update": update}
        for node in ring.attentions:
            with graph.inserting_before(node):
                query = insert(graph, fake_quantize, (node.args[0], None, None, tensors.dtype))
            node.args = (query, *node.args[1:])
    program.graph_module.recompile()


def found_rings(program: ExportedProgram, signature: Signature) -> dict[str, RingTensors]:
    """Returns the quantization of a program's rings, by layer."""
    names, found = weight_names(program), {}
    for layer, ring in rings(program, signature).items():
        writes: list[Any] = [ring.writes[part].kwargs["update"] for part in "kv"]
        if any(update.target is quantize_kv for update in writes):
            found[layer] = _found_stored(names, layer, ring)
        elif any(node.target is fake_quantize for node in (*writes, *_queries(ring))):
            found[layer] = _found_rounded(names, layer, ring)
    return found


def _found_rounded(names: Mapping[str, str], layer: str, ring: Ring) -> RingTensors:
    keys, values = (
        _call(names, ring.writes[part].kwargs["update"], fake_quantize) for part in "kv"
    )
    queries = [_call(names, query, fake_quantize) for query in _queries(ring)]
    if keys is None or values is None or values[1] is not None:
        raise half(layer)
    if keys[2] != values[2] or any(query != (None, None, keys[2]) for query in queries):
        raise half(layer)
    if keys[0] is None or values[0] is None:
        raise half(layer)
    return RingTensors(keys[0], values[0], keys[1], keys[2], bool(queries))


def _found_stored(names: Mapping[str, str], layer: str, ring: Ring) -> RingTensors:
    keys, values = (_call(names, ring.writes[part].kwargs["update"], quantize_kv) for part in "kv")
    if keys is None or values is None or values[1] is not None or keys[2] != values[2]:
        raise half(layer)
    states = {dtype_name(cache.meta["val"].dtype) for cache in ring.caches.values()}
    given: list[Any] = [attention.args[1:3] for attention in ring.attentions]
    read = {tuple(_restored_by(names, node) for node in each) for each in given}
    if states != {keys[2]} or not read <= {(keys[0], values[0])}:
        raise half(layer)
    return RingTensors(keys[0], values[0], keys[1], keys[2], attends=False, stored=True)


def _call(names: Mapping[str, str], node: Any, operator: Any) -> tuple[Any, Any, Any] | None:
    """Returns the scale, mean and dtype of a call of ``rounded`` or ``stored``, or None."""
    if not isinstance(node, fx.Node) or node.target is not operator:
        return None
    given: Any = node.args
    _, scale, mean, dtype = given
    scale, mean = (None if each is None else names[each.name] for each in (scale, mean))
    return scale, mean, dtype


def _restored_by(names: Mapping[str, str], node: Any) -> str | None:
    """Returns the scale of a call of ``dequantize_kv``, or None."""
    return names[node.args[1].name] if node.target is dequantize_kv else None


def _queries(ring: Ring) -> list[Any]:
    return [node.args[0] for node in ring.attentions]


def require_rings(
    component: str, asked: Mapping[str, RingTensors], found: Mapping[str, RingTensors]
) -> None:
    """Rejects a component whose quantized rings differ from the recipe's.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first layer.
    """
    differ = [layer for layer in {**asked, **found} if asked.get(layer) != found.get(layer)]
    if differ:
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe has {len(asked)} rings in 8 bits, the program has "
            f"{len(found)}; the first difference is {differ[0]}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


def half(layer: str) -> BuildError:
    """Returns the error about a partly quantized ring."""
    return BuildError(
        "VIDC-QUANTIZE-COUNT",
        f"{layer}: its queries, keys and values are not all in the same 8-bit format",
        "report it with this message; a recipe that leaves the layer out builds",
    )
