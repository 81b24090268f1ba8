"""Operator ``qk_norm_rope_ring_write_static``: into a ring of 8 bits.

Scales of keys and values are the calibration's, one for each head; those of queries follow from the
largest value of each token's head.

NaN stays NaN in FP8. In INT8 a NaN of keys or values is lost; the residual beside attention still
has it. The scale of a query with NaN is NaN in both.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define
from vidc.plugins.qk_norm_rope import check_qkv, normalize_and_rotate, split_heads
from vidc.plugins.quantize import quantize, quantize_heads
from vidc.plugins.ring import ring_slots
from vidc.plugins.transposed_values import GROUP, stored_at

_CHECKS = Checks("qk_norm_rope_ring_write_static")


class To8BitRing(NamedTuple):
    """Arguments of the operator, in this order; a value is what is stored times its scale."""

    qkv: Tensor
    """``[B, T, 3 H D]``: queries, keys, values; bfloat16 or float16."""
    query_weight: Tensor
    """Of the RMS norm over all heads, ``[H D]``, the dtype of ``qkv``."""
    key_weight: Tensor
    """The same."""
    cos: Tensor
    """Of the rotation, float32 ``[T, D / 2]``."""
    sin: Tensor
    """The same."""
    position: Tensor
    """Absolute index of the first token, int64 ``[1]``, not negative."""
    key_cache: Tensor
    """``[B, S, H, D]``, float8_e4m3fn or int8, written; ``D`` is 32, 64 or 128, and ``H D`` at most
    8192. The ``T`` tokens share no slot."""
    value_cache: Tensor
    """The same dtype and shape, written; ``[B, H, D, S]`` if transposed, its slots in the order of
    ``transposed_values.py``."""
    key_scale: Tensor
    """Float32 ``[H]``, positive."""
    value_scale: Tensor
    """The same."""
    key_mean: Tensor | None
    """Float32 ``[H, D]``, subtracted from the rotated keys; softmax does not see it, for it is one
    for all keys. None for zeros."""
    sink: int
    """Slots that are kept for ever, in tokens."""
    eps: float
    """Of the norm."""
    value_transposed: bool
    """How ``value_cache`` is laid out; ``S`` is then a multiple of 16."""
    quantize_query: bool
    """To the ring's dtype, by a scale for each token and head."""


def qk_norm_rope_ring_write_static_reference(*arguments: Any) -> tuple[Tensor, Tensor]:
    """``qk_norm_rope_ring_write`` with keys and values quantized by a scale for each head.

    Normalized queries and keys are rounded to the dtype, as in the model; what is rotated after
    that is rounded once.

    Args:
        arguments: those of ``To8BitRing``.

    Returns:
        The queries ``[B, T, H, D]``, and their scales, float32 ``[B, H, T]``; ``[0, H, T]`` where
        queries keep the dtype of ``qkv``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    given = To8BitRing(*arguments)
    _check(given)
    key, value, slots = _keys_values(given)
    dtype = given.key_cache.dtype
    _write(given, quantize(key, given.key_scale[:, None], dtype),
           quantize(value, given.value_scale[:, None], dtype), slots)  # fmt: skip
    return _queries(given)


def _keys_values(given: To8BitRing) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values as float32 ``[B, T, H, D]``, and their slots."""
    _, key, value = split_heads(given.qkv, given.key_cache.shape[3])
    key = normalize_and_rotate(key, given.key_weight, given.cos, given.sin, given.eps)
    if given.key_mean is not None:
        key = key - given.key_mean
    tokens, window = given.qkv.shape[1], given.key_cache.shape[1]
    return key, value.float(), ring_slots(given.position, tokens, window, given.sink)


def _queries(given: To8BitRing) -> tuple[Tensor, Tensor]:
    query, *_ = split_heads(given.qkv, given.key_cache.shape[3])
    query = normalize_and_rotate(query, given.query_weight, given.cos, given.sin, given.eps)
    if given.quantize_query:
        return quantize_heads(query, given.key_cache.dtype)
    return query.to(given.qkv.dtype), query.new_empty((0, query.shape[2], query.shape[1]))


def _write(given: To8BitRing, key: Tensor, value: Tensor, slots: Tensor) -> None:
    # As bytes: PyTorch has no writes by index for FP8 on a CPU.
    key_cache, value_cache = (t.view(torch.int8) for t in (given.key_cache, given.value_cache))
    key, value = key.view(torch.int8), value.view(torch.int8)
    key_cache[:, slots] = key
    if given.value_transposed:
        value_cache[..., stored_at(slots)] = value.permute(0, 2, 3, 1)
    else:
        value_cache[:, slots] = value


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    given = To8BitRing(*arguments)
    _check(given)
    qkv, quantized = given.qkv, given.quantize_query
    (batch, tokens), (heads, head_dim) = qkv.shape[:2], given.key_cache.shape[2:]
    dtype = given.key_cache.dtype if quantized else qkv.dtype
    query = qkv.new_empty((batch, tokens, heads, head_dim), dtype=dtype)
    scales = (batch if quantized else 0, heads, tokens)
    return query, qkv.new_empty(scales, dtype=torch.float32)


def _check(given: To8BitRing) -> None:
    checks, qkv, cache, values = _CHECKS, given.qkv, given.key_cache, given.value_cache
    checks.dtype("qkv", qkv, (torch.bfloat16, torch.float16))
    checks.shape("key_cache", cache, ("B", "S", "H", "D"))
    checks.dtype("key_cache", cache, (torch.float8_e4m3fn, torch.int8))
    check_qkv(
        checks, qkv, given.query_weight, given.key_weight, given.cos, given.sin, given.position,
        cache.shape, given.sink,
    )  # fmt: skip
    batch, slots, heads, head_dim = cache.shape
    if given.value_transposed:
        multiple = f"a number of slots that is a multiple of {GROUP}"
        checks.that(slots % GROUP == 0, "key_cache", multiple, slots)
        checks.shape("value_cache", values, (batch, heads, head_dim, slots))
    else:
        checks.shape("value_cache", values, cache.shape)
    checks.dtype("value_cache", values, (cache.dtype,))
    for name, scale in (("key_scale", given.key_scale), ("value_scale", given.value_scale)):
        checks.shape(name, scale, (heads,))
        checks.dtype(name, scale, (torch.float32,))
    if given.key_mean is not None:
        checks.shape("key_mean", given.key_mean, (heads, head_dim))
        checks.dtype("key_mean", given.key_mean, (torch.float32,))


qk_norm_rope_ring_write_static = define(
    "qk_norm_rope_ring_write_static(Tensor qkv, Tensor query_weight, Tensor key_weight, Tensor cos,"
    " Tensor sin, Tensor position, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor key_scale,"
    " Tensor value_scale, Tensor? key_mean, int sink, float eps, bool value_transposed,"
    " bool quantize_query) -> (Tensor, Tensor)",
    qk_norm_rope_ring_write_static_reference,
    _fake,
)
