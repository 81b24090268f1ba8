"""Operators ``ring_write`` and ``ring_attention`` of the ring-buffer KV cache.

The references are plain PyTorch, run on every device and define what kernels must compute. A ring
keeps the first ``sink`` tokens and the newest ``window - sink``:
``slot(p) = p if p < sink else sink + (p - sink) mod (window - sink)`` for absolute token ``p``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define_composite
from vidc.plugins.ops.padded_attention import padded_attention, padded_attention_reference
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference

_WRITE, _ATTENTION = Checks("ring_write"), Checks("ring_attention")


def ring_slots(position: Tensor, tokens: int, window: int, sink: int) -> Tensor:
    """Returns the slots of consecutive tokens, int64 ``[tokens]``.

    Args:
        position: absolute index of the first token, int64 ``[1]``.
        tokens: number of tokens.
        window: slots of the ring.
        sink: slots of the sink, which are never overwritten.
    """
    tokens_at = position + torch.arange(tokens, dtype=torch.int64, device=position.device)
    wrapped = sink + (tokens_at - sink) % (window - sink)
    return torch.where(tokens_at < sink, tokens_at, wrapped)


def ring_write_functional(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """Returns the cache after ``ring_write``, a copy, ``[B, S, H, D]``."""
    return cache.index_put(_indices(cache, update, position, sink), update)


def ring_write_of_bytes(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """``ring_write_functional`` for compilers that cannot write FP8 by index."""
    written = ring_write_functional(_as_bytes(cache), _as_bytes(update), position, sink)
    return written if written.dtype is cache.dtype else written.view(cache.dtype)


def ring_write_reference(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> None:
    """Writes a block's keys or values into their slots, in place.

    Args:
        cache: ``[B, S, H, D]``; ``S`` is the window.
        update: ``[B, T, H, D]``, same dtype; the ``T`` tokens share no slot.
        position: absolute index of the first token, int64 ``[1]``.
        sink: slots of the sink.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check_write(cache, update, position, sink)
    # PyTorch cannot write FP8 by index on a CPU.
    _as_bytes(cache).index_put_(_indices(cache, update, position, sink), _as_bytes(update))


def _as_bytes(tensor: Tensor) -> Tensor:
    """Returns FP8 viewed as int8, any other tensor unchanged."""
    return tensor.view(torch.int8) if tensor.dtype is torch.float8_e4m3fn else tensor


def _indices(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> tuple[Tensor, Tensor]:
    # With an explicit batch index this is one ScatterND in ONNX; index_copy_ along dim 1 would
    # transpose the ring twice.
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
        valid_length: number of valid slots from the first on, int64 ``[1]``.

    Returns:
        ``[B, T, H, D]``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    check_attention(_ATTENTION, query, key_cache, value_cache, valid_length)
    tokens, slots = query.shape[1], key_cache.shape[1]
    valid = torch.arange(slots, dtype=torch.int64, device=query.device) < valid_length
    mask = valid[None, None, None, :].expand(1, 1, tokens, slots)
    return scaled_dot_product_attention(
        query.transpose(1, 2), key_cache.transpose(1, 2), value_cache.transpose(1, 2), mask
    ).transpose(1, 2)


def single_query_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    """``ring_attention`` of one query for each sample, as products and sums; for compilers.

    Each sample has one query and a ring of its own, so an attention kernel would fill one row of
    its tiles. A compiler turns this form into three kernels that read each ring once.

    Args:
        query: ``[B, 1, H, D]``.
        key_cache: ``[B, S, H, D]``.
        value_cache: ``[B, S, H, D]``.
        valid_length: number of valid slots from the first on, int64 ``[1]``.

    Returns:
        ``[B, 1, H, D]``, summed in float32.
    """
    slots = torch.arange(key_cache.shape[1], dtype=torch.int64, device=query.device)
    scores = (query.float() * key_cache.float()).sum(-1) * query.shape[-1] ** -0.5
    scores = scores.masked_fill((slots >= valid_length)[None, :, None], -torch.inf)
    weights: Tensor = scores.softmax(1)[..., None]
    return (weights * value_cache.float()).sum(1, keepdim=True).to(query.dtype)


def _check_write(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> None:
    _WRITE.shape("cache", cache, ("B", "S", "H", "D"))
    batch, slots, *row = cache.shape
    _WRITE.shape("update", update, (batch, "T", *row))
    _WRITE.dtype("update", update, (cache.dtype,))
    tokens = update.shape[1]
    _WRITE.that(tokens <= slots, "update", f"at most {slots} tokens", tokens)
    _one_number(_WRITE, "position", position)
    _WRITE.that(0 <= sink < slots, "sink", f"from 0 to {slots - 1}", sink)


def check_attention(
    checks: Checks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    valid_length: Tensor,
    names: tuple[str, str] = ("key_cache", "value_cache"),
) -> None:
    """Checks what all operators that compute ``ring_attention`` ask of their arguments.

    Args:
        checks: of the operator.
        query: as in ``ring_attention_reference``, like the next three.
        key: keys of the ring.
        value: values of the ring.
        valid_length: number of valid slots.
        names: the operator's names of ``key`` and ``value``.
    """
    checks.shape("query", query, ("B", "T", "H", "D"))
    batch, _, *row = query.shape
    checks.shape(names[0], key, (batch, "S", *row))
    checks.shape(names[1], value, (batch, key.shape[1], *row))
    for name, ring in zip(names, (key, value), strict=True):
        checks.dtype(name, ring, (query.dtype,))
    _one_number(checks, "valid_length", valid_length)


def _one_number(checks: Checks, argument: str, tensor: Tensor) -> None:
    checks.shape(argument, tensor, (1,))
    checks.dtype(argument, tensor, (torch.int64,))


def _ring_attention_fake(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    check_attention(_ATTENTION, query, key_cache, value_cache, valid_length)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


ring_write = define_composite(
    "ring_write(Tensor(a!) cache, Tensor update, Tensor position, int sink) -> ()",
    ring_write_reference,
    _check_write,
)
ring_attention = define_composite(
    "ring_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor valid_length)"
    " -> Tensor",
    ring_attention_reference,
    _ring_attention_fake,
)

PORTABLE: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    ring_write: ring_write_functional,
    ring_attention: ring_attention_reference,
    padded_attention: padded_attention_reference,
    qk_norm_rope: qk_norm_rope_reference,
}
"""Portable form of each exported operator: a function of standard operators without mutation.

The form of a mutating operator returns the mutated tensor.
"""
