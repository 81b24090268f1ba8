"""The KV ring and GELU in vidc's TensorRT plugins; the ring is written in place, across its wrap.

A node has the operator's name, its tensor arguments as inputs in order and its numbers as
attributes; TensorRT's parser looks for a plugin of that name.
"""

from typing import Any

import torch
from torch import Tensor

from vidc.exporters.onnx.functional import Operators
from vidc.plugins import loading
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import (
    RingWriteArguments,
    qk_norm_rope_ring_write_static,
)
from vidc.plugins.ops.ring import ring_attention
from vidc.plugins.ops.ring_attention_8bit import AttentionArguments, ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit
from vidc.plugins.signature import DTYPES, Signature

DOMAIN = "vidc"
RING_WRITES = ("qk_norm_rope_ring_write", "qk_norm_rope_ring_write_static")
"""Node types that write a ring in place."""
_REGISTERED = {"plugin_namespace": loading.NAMESPACE, "plugin_version": loading.VERSION}
"""Attributes by which TensorRT's parser finds a plugin."""


def refusal(signature: Signature) -> str | None:
    """Returns the reason why the plugins cannot run a component's rings, None if they can."""
    keys = next((state for state in signature.states if state.name.startswith("ring.k.")), None)
    if keys is None:
        return "it has no ring"
    ring = torch.empty(keys.shape, dtype=keys.torch_dtype, device="meta")
    length = torch.empty(1, dtype=torch.int64, device="meta")
    try:
        ring_attention_16bit(ring[:, :1], ring, ring, length)
    except UsageError as error:
        return error.message
    return None


def _ring_write(*given: Any) -> tuple[Tensor, ...]:
    """``qk_norm_rope_ring_write``, only for export: returns queries and both caches."""
    *inputs, sink, eps = given
    qkv, key_cache, value_cache = inputs[0], *inputs[-2:]
    query = key_cache.new_empty((*qkv.shape[:2], *key_cache.shape[2:]))
    results = (query, key_cache, value_cache)
    return _plugin(RING_WRITES[0], tuple(inputs), {"sink": sink, "eps": eps}, results)


def _ring_write_8bit(*given: Any) -> tuple[Tensor, ...]:
    """``qk_norm_rope_ring_write_static``, only for export.

    Returns queries, their scales (empty if queries are not quantized) and both caches. The plugin
    has no output of scales that are empty.
    """
    args = RingWriteArguments(*given)
    numbers = {
        "sink": args.sink,
        "eps": args.eps,
        "value_transposed": int(args.value_transposed),
        "quantize_query": int(args.quantize_query),
    }
    inputs = tuple(value for value in args if isinstance(value, Tensor))
    qkv, keys, values = args.qkv, args.key_cache, args.value_cache
    (batch, tokens), (heads, head_dim) = qkv.shape[:2], keys.shape[2:]
    query_dtype = keys.dtype if args.quantize_query else qkv.dtype
    query = qkv.new_empty((batch, tokens, heads, head_dim), dtype=query_dtype)
    scales = qkv.new_empty((batch, heads, tokens), dtype=torch.float32)
    if args.quantize_query:
        return _plugin(RING_WRITES[1], inputs, numbers, (query, scales, keys, values))
    query, keys, values = _plugin(RING_WRITES[1], inputs, numbers, (query, keys, values))
    return query, scales[:0], keys, values


def _ring_attention(query: Tensor, *ring: Tensor) -> Tensor:
    (attended,) = _plugin("ring_attention_16bit", (query, *ring), {}, (query,))
    return attended


def _ring_attention_8bit(*given: Any) -> Tensor:
    args = AttentionArguments(*given)
    inputs = tuple(value for value in args if isinstance(value, Tensor))
    like = args.query.new_empty(args.query.shape, dtype=DTYPES[args.dtype])
    (attended,) = _plugin("ring_attention_8bit", inputs, {"dtype": args.dtype}, (like,))
    return attended


def _gelu_quantize(x: Tensor, dtype: str, *scale_and_mean: Tensor | None) -> Tensor:
    inputs = (x, *(value for value in scale_and_mean if value is not None))
    like = x.new_empty(x.shape, dtype=DTYPES[dtype])
    (activated,) = _plugin("gelu_quantize", inputs, {"dtype": dtype}, (like,))
    return activated


def _plugin(
    name: str, inputs: tuple[Tensor, ...], attributes: dict[str, Any], like: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    results = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{name}",
        inputs,
        {**attributes, **_REGISTERED},
        dtypes=[tensor.dtype for tensor in like],
        shapes=[tensor.shape for tensor in like],
        version=1,
    )
    return tuple(results)


ACTIVATION_PLUGINS: Operators = {gelu_quantize: _gelu_quantize}
"""Plugin form of GELU alone, beside another form of the ring."""
PLUGINS: Operators = {
    **ACTIVATION_PLUGINS,
    qk_norm_rope_ring_write: _ring_write,
    qk_norm_rope_ring_write_static: _ring_write_8bit,
    ring_attention: _ring_attention,
    ring_attention_8bit: _ring_attention_8bit,
}
"""Plugin forms of vidc operators; portable ones are in ``vidc.plugins.ops.ring.PORTABLE``."""
