"""Operators of the ring-buffer KV cache: definitions, fake kernels and references.

The reference is plain PyTorch, runs on every device and is the truth that kernels are held to.
A ring keeps the first ``sink`` tokens for ever and the newest ``window - sink`` in turn:
``slot(p) = p if p < sink else sink + (p - sink) mod (window - sink)`` for absolute token ``p``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vidc.plugins.arguments import Checks
from vidc.plugins.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference

LIBRARY = torch.library.Library("vidc", "FRAGMENT")
LIBRARY.define("ring_write(Tensor(a!) cache, Tensor update, Tensor position, int sink) -> ()")
LIBRARY.define(
    "ring_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor valid_length)"
    " -> Tensor"
)

_WRITE, _ATTENTION = Checks("ring_write"), Checks("ring_attention")


def ring_slots(position: Tensor, tokens: int, window: int, sink: int) -> Tensor:
    """Slots of ``tokens`` consecutive tokens, int64 ``[tokens]``.

    Args:
        position: absolute index of the first token, int64 ``[1]``.
        tokens: how many tokens.
        window: slots of the ring, in tokens.
        sink: slots that are kept for ever, in tokens.
    """
    tokens_at = position + torch.arange(tokens, dtype=torch.int64, device=position.device)
    wrapped = sink + (tokens_at - sink) % (window - sink)
    return torch.where(tokens_at < sink, tokens_at, wrapped)


def ring_write_functional(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """``ring_write`` into a copy: returns the new cache, ``[B, S, H, D]``."""
    return cache.index_put(_indices(cache, update, position, sink), update)


def ring_write_of_bytes(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """``ring_write_functional`` for compilers that have no writes by index for FP8."""
    written = ring_write_functional(_as_bytes(cache), _as_bytes(update), position, sink)
    return written if written.dtype is cache.dtype else written.view(cache.dtype)


def ring_write_reference(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> None:
    """Writes a block's keys or values into their slots, in place.

    Args:
        cache: ``[B, S, H, D]``; ``S`` is the window in tokens.
        update: ``[B, T, H, D]``, same dtype; ``T`` tokens that share no slot.
        position: absolute index of the first token, int64 ``[1]``.
        sink: in tokens.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check_write(cache, update, position, sink)
    # PyTorch has none of these for FP8 on a CPU.
    _as_bytes(cache).index_put_(_indices(cache, update, position, sink), _as_bytes(update))


def _as_bytes(tensor: Tensor) -> Tensor:
    """FP8 as the bytes that it is, anything else as it is."""
    return tensor.view(torch.int8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _indices(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> tuple[Tensor, Tensor]:
    # An explicit batch index makes this one ScatterND in ONNX; index_copy_ along dim 1 would
    # transpose the whole ring twice.
    batch, tokens = update.shape[:2]
    slots = ring_slots(position, tokens, cache.shape[1], sink)
    rows = torch.arange(batch, dtype=torch.int64, device=cache.device)
    return rows[:, None].expand(batch, tokens), slots[None, :].expand(batch, tokens)


def ring_attention_reference(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    """Softmax attention of a block's queries over the valid slots of a ring.

    Args:
        query: ``[B, T, H, D]``.
        key_cache: ``[B, S, H, D]``, same dtype.
        value_cache: ``[B, S, H, D]``, same dtype.
        valid_length: how many slots, from the first, hold tokens, int64 ``[1]``.

    Returns:
        ``[B, T, H, D]``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check_attention(query, key_cache, value_cache, valid_length)
    tokens, slots = query.shape[1], key_cache.shape[1]
    valid = torch.arange(slots, dtype=torch.int64, device=query.device) < valid_length
    mask = valid[None, None, None, :].expand(1, 1, tokens, slots)
    return scaled_dot_product_attention(
        query.transpose(1, 2), key_cache.transpose(1, 2), value_cache.transpose(1, 2), mask
    ).transpose(1, 2)


def _check_write(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> None:
    _WRITE.shape("cache", cache, ("B", "S", "H", "D"))
    batch, slots, *row = cache.shape
    _WRITE.shape("update", update, (batch, "T", *row))
    _WRITE.dtype("update", update, (cache.dtype,))
    tokens = update.shape[1]
    _WRITE.that(tokens <= slots, "update", f"at most {slots} tokens", tokens)
    _one_number(_WRITE, "position", position)
    _WRITE.that(0 <= sink < slots, "sink", f"from 0 to {slots - 1}", sink)


def _check_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> None:
    _ATTENTION.shape("query", query, ("B", "T", "H", "D"))
    batch, _, *row = query.shape
    _ATTENTION.shape("key_cache", key_cache, (batch, "S", *row))
    _ATTENTION.shape("value_cache", value_cache, (batch, key_cache.shape[1], *row))
    for name, ring in (("key_cache", key_cache), ("value_cache", value_cache)):
        _ATTENTION.dtype(name, ring, (query.dtype,))
    _one_number(_ATTENTION, "valid_length", valid_length)


def _one_number(checks: Checks, argument: str, tensor: Tensor) -> None:
    checks.shape(argument, tensor, (1,))
    checks.dtype(argument, tensor, (torch.int64,))


def _ring_attention_fake(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    _check_attention(query, key_cache, value_cache, valid_length)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


for _name, _reference, _fake in (
    ("ring_write", ring_write_reference, _check_write),
    ("ring_attention", ring_attention_reference, _ring_attention_fake),
):
    LIBRARY.impl(_name, _reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"vidc::{_name}", _fake, lib=LIBRARY)

ring_write = torch.ops.vidc.ring_write.default
ring_attention = torch.ops.vidc.ring_attention.default

PORTABLE: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    ring_write: ring_write_functional,
    ring_attention: ring_attention_reference,
    qk_norm_rope: qk_norm_rope_reference,
}
"""Each exported operator's functional form in standard operators, for graphs that cannot hold ours.

A mutating operator's form returns the mutated tensor.
"""
