"""Rings that are stored in 8 bits and read by high-precision attention.

Keys and values are quantized when a block is written, and dequantized to the queries' dtype before
attention. The layout of the ring does not change, so all backends lower the same program.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from vidc.compiler.quantize.rings import Ring, RingTensors, rings
from vidc.exporters.lowering import insert
from vidc.exporters.program import argument_placeholders
from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.signature import DTYPES, Rounding, Signature


def store_rings(
    program: ExportedProgram,
    signature: Signature,
    asked: Mapping[str, RingTensors],
    placeholder: Callable[[str], fx.Node],
) -> Signature:
    """Makes ``stored`` rings 8-bit states.

    Args:
        program: an exported program; changed in place.
        signature: the component's signature.
        asked: result of ``asked_rings``.
        placeholder: returns the placeholder of a weight, and adds it if necessary.

    Returns:
        The signature with the 8-bit states.
    """
    specs = dict(zip(argument_placeholders(program), signature.arguments, strict=True))
    kept = {}
    for layer, ring in rings(program, signature).items():
        tensors = asked.get(layer)
        if tensors is None or not tensors.stored:
            continue
        parts = {
            "k": Rounding(tensors.key_scale, tensors.key_mean),
            "v": Rounding(tensors.value_scale),
        }
        for part, rounding in parts.items():
            scale = placeholder(rounding.scale)
            mean = None if rounding.mean is None else placeholder(rounding.mean)
            _read(program.graph, ring, part, scale)
            _write(program.graph, ring, part, (scale, mean, tensors.dtype))
            spec = specs[ring.caches[part]]
            kept[spec.name] = replace(spec, dtype=tensors.dtype, rounding=rounding)
    program.graph_module.recompile()
    return replace(signature, tensors=tuple(kept.get(t.name, t) for t in signature))


def _write(graph: fx.Graph, ring: Ring, part: str, rounding: tuple[Any, Any, str]) -> None:
    cache, write = ring.caches[part], ring.writes[part]
    with graph.inserting_before(write):
        update = insert(graph, quantize_kv, (write.kwargs["update"], *rounding))
    write.kwargs = {**write.kwargs, "update": update}
    value = cache.meta["val"]
    with value.fake_mode:
        narrow = torch.empty(value.shape, dtype=DTYPES[rounding[2]])
    cache.meta["val"] = narrow
    write.meta["val"] = (None, narrow)
    for result in write.users:
        result.meta["val"] = narrow


def _read(graph: fx.Graph, ring: Ring, part: str, scale: fx.Node) -> None:
    position = 1 + "kv".index(part)
    for attention in ring.attentions:
        given: list[Any] = list(attention.args)
        keys = given[position]
        dtype = dtype_name(attention.meta["val"].dtype)
        with graph.inserting_before(attention):
            node = graph.call_function(dequantize_kv, (keys, scale, dtype))
        node.meta["val"] = keys.meta["val"]  # Dequantized, as before.
        given[position] = node
        attention.args = tuple(given)
