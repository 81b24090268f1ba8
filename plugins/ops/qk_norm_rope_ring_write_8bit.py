"""Operator ``qk_norm_rope_ring_write_static``: ``qk_norm_rope_ring_write`` into an 8-bit ring.

Keys and values have static scales per head, from calibration. Queries have dynamic scales per token
and head, from their amax.

NaN stays NaN in FP8. INT8 has no NaN, so one in keys or values is lost here; the model's residual
connection still has it. In both dtypes, a query with NaN has a NaN scale.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define
from vidc.plugins.ops.qk_norm_rope import check_qkv, normalize_and_rotate, split_heads
from vidc.plugins.ops.ring import ring_slots
from vidc.plugins.quantize import quantize, quantize_heads
from vidc.plugins.transposed_values import GROUP, stored_at

_CHECKS = Checks("qk_norm_rope_ring_write_static")


class RingWriteArguments(NamedTuple):
    """Arguments of the operator, in this order."""

    qkv: Tensor
    """Queries, keys and values, ``[B, T, 3 H D]``; bfloat16 or float16."""
    query_weight: Tensor
    """Weight of the RMS norm over all heads, ``[H D]``, the dtype of ``qkv``."""
    key_weight: Tensor
    """The same for keys."""
    cos: Tensor
    """Cosines of the rotary embedding, float32 ``[T, D / 2]``."""
    sin: Tensor
    """Sines, float32 ``[T, D / 2]``."""
    position: Tensor
    """Absolute index of the first token, int64 ``[1]``, not negative."""
    key_cache: Tensor
    """``[B, S, H, D]``, float8_e4m3fn or int8, written; ``D`` is 32, 64 or 128, and ``H D`` at most
    8192. The ``T`` tokens share no slot."""
    value_cache: Tensor
    """The same dtype and shape, written; if transposed ``[B, H, D, S']`` with slots in the order of
    ``transposed_values.py``. ``S'`` is a multiple of 16 and at least ``S``; slots from ``S`` on are
    not written."""
    key_scale: Tensor
    """Float32 ``[H]``, positive."""
    value_scale: Tensor
    """Float32 ``[H]``, positive."""
    key_mean: Tensor | None
    """Float32 ``[H, D]``, subtracted from the rotated keys; None for zeros. Softmax ignores an
    offset that all keys share."""
    sink: int
    """Slots of the sink, which are never overwritten."""
    eps: float
    """Epsilon of the norm."""
    value_transposed: bool
    """True if ``value_cache`` is transposed."""
    quantize_query: bool
    """True to quantize queries to the ring's dtype, per token and head."""


def qk_norm_rope_ring_write_static_reference(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Normalizes and rotates queries and keys, and writes quantized keys and values to the ring.

    Normalized queries and keys are rounded to the dtype, as in the model. Rotated ones are rounded
    once.

    Args:
        arguments: the fields of ``RingWriteArguments``.

    Returns:
        The queries ``[B, T, H, D]`` and their scales, float32 ``[B, H, T]``; ``[0, H, T]`` if
        queries are not quantized.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    args = RingWriteArguments(*arguments)
    _check(args)
    key, value, slots = _keys_values(args)
    dtype = args.key_cache.dtype
    _write(args, quantize(key, args.key_scale[:, None], dtype),
           quantize(value, args.value_scale[:, None], dtype), slots)  # fmt: skip
    return _queries(args)


def _keys_values(args: RingWriteArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Returns keys and values as float32 ``[B, T, H, D]``, and their slots."""
    _, key, value = split_heads(args.qkv, args.key_cache.shape[3])
    key = normalize_and_rotate(key, args.key_weight, args.cos, args.sin, args.eps)
    if args.key_mean is not None:
        key = key - args.key_mean
    tokens, window = args.qkv.shape[1], args.key_cache.shape[1]
    return key, value.float(), ring_slots(args.position, tokens, window, args.sink)


def _queries(args: RingWriteArguments) -> tuple[Tensor, Tensor]:
    query, *_ = split_heads(args.qkv, args.key_cache.shape[3])
    query = normalize_and_rotate(query, args.query_weight, args.cos, args.sin, args.eps)
    if args.quantize_query:
        return quantize_heads(query, args.key_cache.dtype)
    return query.to(args.qkv.dtype), query.new_empty((0, query.shape[2], query.shape[1]))


def _write(args: RingWriteArguments, key: Tensor, value: Tensor, slots: Tensor) -> None:
    # As bytes: PyTorch cannot write FP8 by index on a CPU.
    key_cache, value_cache = (t.view(torch.int8) for t in (args.key_cache, args.value_cache))
    key, value = key.view(torch.int8), value.view(torch.int8)
    key_cache[:, slots] = key
    if args.value_transposed:
        value_cache[..., stored_at(slots)] = value.permute(0, 2, 3, 1)
    else:
        value_cache[:, slots] = value


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    args = RingWriteArguments(*arguments)
    _check(args)
    qkv, quantized = args.qkv, args.quantize_query
    (batch, tokens), (heads, head_dim) = qkv.shape[:2], args.key_cache.shape[2:]
    dtype = args.key_cache.dtype if quantized else qkv.dtype
    query = qkv.new_empty((batch, tokens, heads, head_dim), dtype=dtype)
    scales = (batch if quantized else 0, heads, tokens)
    return query, qkv.new_empty(scales, dtype=torch.float32)


def _check(args: RingWriteArguments) -> None:
    checks, qkv, cache, values = _CHECKS, args.qkv, args.key_cache, args.value_cache
    checks.dtype("qkv", qkv, (torch.bfloat16, torch.float16))
    checks.shape("key_cache", cache, ("B", "S", "H", "D"))
    checks.dtype("key_cache", cache, (torch.float8_e4m3fn, torch.int8))
    check_qkv(
        checks, qkv, args.query_weight, args.key_weight, args.cos, args.sin, args.position,
        cache.shape, args.sink,
    )  # fmt: skip
    batch, slots, heads, head_dim = cache.shape
    if args.value_transposed:
        checks.shape("value_cache", values, (batch, heads, head_dim, "S'"))
        stored = values.shape[3]
        multiple = f"a number of slots that is a multiple of {GROUP}, at least {slots}"
        checks.that(stored % GROUP == 0 and stored >= slots, "value_cache", multiple, stored)
    else:
        checks.shape("value_cache", values, cache.shape)
    checks.dtype("value_cache", values, (cache.dtype,))
    for name, scale in (("key_scale", args.key_scale), ("value_scale", args.value_scale)):
        checks.shape(name, scale, (heads,))
        checks.dtype(name, scale, (torch.float32,))
    if args.key_mean is not None:
        checks.shape("key_mean", args.key_mean, (heads, head_dim))
        checks.dtype("key_mean", args.key_mean, (torch.float32,))


qk_norm_rope_ring_write_static = define(
    "qk_norm_rope_ring_write_static(Tensor qkv, Tensor query_weight, Tensor key_weight, Tensor cos,"
    " Tensor sin, Tensor position, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor key_scale,"
    " Tensor value_scale, Tensor? key_mean, int sink, float eps, bool value_transposed,"
    " bool quantize_query) -> (Tensor, Tensor)",
    qk_norm_rope_ring_write_static_reference,
    _fake,
)
