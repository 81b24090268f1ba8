"""The KV ring in TensorRT's native layers: updated in place, without a mask.

A cache is ``[B, H, S, D]``. One TensorScatter writes a block; TensorRT updates in place if the
block's slots are contiguous, which ``Component.aligned`` guarantees. Attention takes the number
of valid slots.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.export import ExportedProgram

from vidc.exporters.lowering import FUNCTIONALIZED
from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.quantized import TENSORRT
from vidc.exporters.program import argument_placeholders
from vidc.plugins.ops.ring import PORTABLE, ring_attention, ring_slots, ring_write
from vidc.plugins.signature import Signature

_OPSET = 24
_HEADS_FIRST = (0, 2, 1, 3)
"""``[B, S, H, D]`` as ``[B, H, S, D]``."""


def native_ring_write(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """``ring_write`` for streams whose blocks do not straddle the wrap; only for export.

    Args:
        cache: ``[B, H, S, D]``.
        update: ``[B, T, H, D]``; an update as long as the ring without sink may start anywhere.
        position: absolute index of the first token, int64 ``[1]``.
        sink: in tokens.
    """
    batch, window, tokens = cache.shape[0], cache.shape[2], update.shape[1]
    start = ring_slots(position, 1, window, sink)
    if tokens == window - sink:
        # All slots except the sink's are written: tokens are rotated, slots start at the sink.
        # From a position within the sink, tokens are written in order.
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
    """``ring_attention`` over caches ``[B, H, S, D]``; only for export."""
    queries = query.transpose(1, 2)
    attended = torch.onnx.ops.symbolic(
        "Attention",
        (queries, key_cache, value_cache, None, None, None, valid_length.expand(query.shape[0])),
        dtype=query.dtype,
        shape=queries.shape,
        version=_OPSET,
    )
    # Contiguous, as the operator declares: a view may follow.
    return attended.transpose(1, 2).contiguous()


NATIVE: Operators = {ring_write: native_ring_write, ring_attention: native_ring_attention}
"""Native forms of vidc operators; portable ones are in ``vidc.plugins.ops.ring.PORTABLE``."""


def native_form(
    program: ExportedProgram, signature: Signature, aligned: bool
) -> tuple[Signature, Operators]:
    """Returns a component's signature and operators for a GPU: native if its stream is aligned.

    Quantized linear layers have one form.
    """
    if aligned:
        return native_signature(program, signature), {**NATIVE, **TENSORRT}
    return signature, {**PORTABLE, **TENSORRT}


def native_signature(program: ExportedProgram, signature: Signature) -> Signature:
    """Returns the signature of a component with caches in the layout of ``NATIVE``."""
    caches = _caches(program, signature)
    return replace(
        signature,
        tensors=tuple(t.rearranged(_HEADS_FIRST) if t.name in caches else t for t in signature),
    )


def _caches(program: ExportedProgram, signature: Signature) -> frozenset[str]:
    """Returns the names of the states that ``ring_write`` writes."""
    written = {
        base
        for node in program.graph.find_nodes(op="call_function", target=FUNCTIONALIZED)
        if node.args[0] is ring_write
        for base in node.kwargs["_all_bases"]
    }
    placeholders = zip(signature.arguments, argument_placeholders(program), strict=True)
    return frozenset(spec.name for spec, node in placeholders if node in written)
