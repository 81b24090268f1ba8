"""Operator ``qk_norm_rope_ring_write``: QK norm, rotary embedding and the write to the ring."""

from typing import Any, cast

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define
from vidc.plugins.ops.qk_norm_rope import check_qkv, normalize_and_rotate, split_heads
from vidc.plugins.ops.ring import ring_write_reference

_CHECKS = Checks("qk_norm_rope_ring_write")


def qk_norm_rope_ring_write_reference(
    qkv: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sink: int,
    eps: float,
) -> Tensor:
    """Normalizes and rotates queries and keys, and writes keys and values into the ring.

    Norm and rotation are computed in float32; each is rounded to the dtype, as in the model.

    Args:
        qkv: queries, keys and values, ``[B, T, 3 H D]``; bfloat16, float16 or float32.
        query_weight: weight of the RMS norm over all heads, ``[H D]``, the same dtype.
        key_weight: the same for keys.
        cos: cosines of the rotary embedding, float32 ``[T, D / 2]``.
        sin: sines, float32 ``[T, D / 2]``.
        position: absolute index of the first token, int64 ``[1]``, not negative. Kernels read it
            on the device, so one CUDA graph serves every position.
        key_cache: ``[B, S, H, D]``, the dtype of ``qkv``, written; ``D`` is 32, 64 or 128, and
            ``H D`` at most 8192. The ``T`` tokens share no slot.
        value_cache: the same for values.
        sink: slots of the sink, which are never overwritten.
        eps: epsilon of the norm.

    Returns:
        The queries, ``[B, T, H, D]``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(qkv, query_weight, key_weight, cos, sin, position, key_cache, value_cache, sink, eps)
    query, key, value = split_heads(qkv, key_cache.shape[3])
    rotated = normalize_and_rotate(key, key_weight, cos, sin, eps).to(qkv.dtype)
    ring_write_reference(key_cache, rotated, position, sink)
    ring_write_reference(value_cache, value, position, sink)
    return normalize_and_rotate(query, query_weight, cos, sin, eps).to(qkv.dtype)


def _fake(*arguments: Any) -> Tensor:
    _check(*arguments)
    qkv, key_cache = arguments[0], arguments[6]
    return cast(Tensor, qkv.new_empty((*qkv.shape[:2], *key_cache.shape[2:])))


def _check(
    qkv: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    sink: int,
    eps: float,
) -> None:
    _CHECKS.dtype("qkv", qkv, (torch.bfloat16, torch.float16, torch.float32))
    _CHECKS.shape("key_cache", key_cache, ("B", "S", "H", "D"))
    check_qkv(_CHECKS, qkv, query_weight, key_weight, cos, sin, position, key_cache.shape, sink)
    _CHECKS.shape("value_cache", value_cache, key_cache.shape)
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        _CHECKS.dtype(name, cache, (qkv.dtype,))


qk_norm_rope_ring_write = define(
    "qk_norm_rope_ring_write(Tensor qkv, Tensor query_weight, Tensor key_weight, Tensor cos,"
    " Tensor sin, Tensor position, Tensor(a!) key_cache, Tensor(b!) value_cache, int sink,"
    " float eps) -> Tensor",
    qk_norm_rope_ring_write_reference,
    _fake,
)
