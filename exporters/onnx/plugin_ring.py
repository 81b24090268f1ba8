"""The KV ring in vidc's TensorRT plugins: written in place, also across the wrap.

A node has the operator's name, its tensor arguments as inputs in order and its numbers as
attributes; TensorRT's parser looks for a plugin of that name.
"""

from typing import Any

import torch
from torch import Tensor

from vidc.exporters.onnx.functional import Operators
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.ring import ring_attention
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit
from vidc.plugins.signature import Signature

RING_WRITE = "qk_norm_rope_ring_write"
_REGISTERED = {"plugin_namespace": "vidc", "plugin_version": "1"}
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
    return _plugin(RING_WRITE, tuple(inputs), {"sink": sink, "eps": eps}, results)


def _ring_attention(query: Tensor, *ring: Tensor) -> Tensor:
    (attended,) = _plugin("ring_attention_16bit", (query, *ring), {}, (query,))
    return attended


def _plugin(
    name: str, inputs: tuple[Tensor, ...], attributes: dict[str, Any], like: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    results = torch.onnx.ops.symbolic_multi_out(
        f"vidc::{name}",
        inputs,
        {**attributes, **_REGISTERED},
        dtypes=[tensor.dtype for tensor in like],
        shapes=[tensor.shape for tensor in like],
        version=1,
    )
    return tuple(results)


PLUGINS: Operators = {qk_norm_rope_ring_write: _ring_write, ring_attention: _ring_attention}
"""Plugin forms of vidc operators; portable ones are in ``vidc.plugins.ops.ring.PORTABLE``."""
