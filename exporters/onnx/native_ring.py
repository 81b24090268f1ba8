"""The ring in operators that TensorRT has layers for: updated in place, without a mask.

A cache has its heads before its tokens there, ``[B, H, S, D]``. A block is written by one
TensorScatter, which TensorRT turns into an update in place if the block's slots follow one another:
``StreamConfig.aligned`` says whether they always do. Attention takes the number of valid slots.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.quantized_linear import QUANTIZED
from vidc.exporters.program import argument_placeholders
from vidc.plugins.ops.ring import PORTABLE, ring_attention, ring_slots, ring_write
from vidc.plugins.signature import Signature

_OPSET = 24
_HEADS_FIRST = (0, 2, 1, 3)
"""``[B, S, H, D]`` as ``[B, H, S, D]``."""


def native_ring_write(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """``ring_write`` of a stream whose blocks do not straddle the wrap, for export alone.

    Args:
        cache: ``[B, H, S, D]``.
        update: ``[B, T, H, D]``; as many tokens as the ring turns over may start anywhere in it.
        position: absolute index of the first token, int64 ``[1]``.
        sink: in tokens.
    """
    batch, window, tokens = cache.shape[0], cache.shape[2], update.shape[1]
    start = ring_slots(position, 1, window, sink)
    if tokens == window - sink:
        # All slots but the sink's are written: the tokens turn, and the slots start at the sink.
        # From a position within the sink they are written as they come.
        turned = (position - sink).clamp(min=0) % tokens
        update = update.index_select(1, (torch.arange(tokens) + tokens - turned) % tokens)
        start = position.clamp(max=sink)
    return torch.onnx.ops.symbolic(
        "TensorScatter",
        (cache, update.transpose(1, 2), start.expand(batch)),
        {"axis": -2, "mode": "linear"},
        dtype=cache.dtype,
        shape=cache.shape,
        version=_OPSET,
    )


def native_ring_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    """``ring_attention`` over caches ``[B, H, S, D]``, for export alone."""
    queries = query.transpose(1, 2)
    attended = torch.onnx.ops.symbolic(
        "Attention",
        (queries, key_cache, value_cache, None, None, None, valid_length.expand(query.shape[0])),
        dtype=query.dtype,
        shape=queries.shape,
        version=_OPSET,
    )
    # Contiguous, as the operator says: what follows may be a view of it.
    return attended.transpose(1, 2).contiguous()


NATIVE: Operators = {ring_write: native_ring_write, ring_attention: native_ring_attention}
"""Native forms of vidc's operators; ``vidc.plugins.ops.ring.PORTABLE`` has the portable ones."""


def native_form(
    program: ExportedProgram, signature: Signature, aligned: bool
) -> tuple[Signature, Operators]:
    """A component's signature and operators for a GPU: in this form where its stream is aligned.

    Linears in 8 bits have one form.
    """
    if aligned:
        return native_signature(program, signature), {**NATIVE, **QUANTIZED}
    return signature, {**PORTABLE, **QUANTIZED}


def native_signature(program: ExportedProgram, signature: Signature) -> Signature:
    """The signature of a component whose caches are laid out as ``NATIVE`` wants them."""
    caches = _caches(program, signature)
    return replace(
        signature,
        tensors=tuple(t.rearranged(_HEADS_FIRST) if t.name in caches else t for t in signature),
    )


def _caches(program: ExportedProgram, signature: Signature) -> frozenset[str]:
    """Names of the states that ``ring_write`` writes."""
    written = {
        base
        for node in program.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.auto_functionalized_v2
        )
        if node.args[0] is ring_write
        for base in node.kwargs["_all_bases"]
    }
    placeholders = zip(signature.arguments, argument_placeholders(program), strict=True)
    return frozenset(spec.name for spec, node in placeholders if node in written)
