"""Operator ``ring_attention_16bit``: ``ring_attention`` by a kernel for sm_75 and newer.

Backends put it in place of ``ring_attention`` where FlashAttention-4 has no kernel. On Hopper it
takes about four times as long as FlashAttention-4 (docs/evidence/kernels.md), so engines for Hopper
never call it.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define
from vidc.plugins.ops.ring import check_attention, ring_attention_reference

_CHECKS = Checks("ring_attention_16bit")
_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_SIZES = (64, 128)
_SLOTS = 2**20
_ROWS = 2**31 - 128


def ring_attention_16bit_reference(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor
) -> Tensor:
    """Softmax attention of a block's queries over the valid slots of a ring.

    Args:
        query: ``[B, T, H, D]``, bfloat16 or float16; ``D`` is 64 or 128.
        key_cache: ``[B, S, H, D]``, same dtype.
        value_cache: ``[B, S, H, D]``, same dtype. Slots that are not valid may have any content.
        valid_length: number of valid slots from the first on, int64 ``[1]``, clamped to
            ``[1, S]``.

    Returns:
        ``[B, T, H, D]`` of the same dtype, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(query, key_cache, value_cache, valid_length)
    valid = min(max(int(valid_length), 1), key_cache.shape[1])
    keys, values = key_cache[:, :valid], value_cache[:, :valid]
    length = valid_length.new_full((1,), valid)
    return ring_attention_reference(query, keys, values, length).contiguous()


def _fake(query: Tensor, key_cache: Tensor, value_cache: Tensor, valid_length: Tensor) -> Tensor:
    _check(query, key_cache, value_cache, valid_length)
    return query.new_empty(query.shape)


def _check(query: Tensor, keys: Tensor, values: Tensor, valid_length: Tensor) -> None:
    _CHECKS.shape("query", query, ("B", "T", "H", "D"))
    _CHECKS.dtype("query", query, _DTYPES)
    batch, tokens, heads, head_dim = query.shape
    sizes = " or ".join(map(str, _HEAD_SIZES))
    _CHECKS.that(head_dim in _HEAD_SIZES, "query", f"a head size of {sizes}", head_dim)
    check_attention(_CHECKS, query, keys, values, valid_length)
    slots, rows = keys.shape[1], batch * tokens * heads
    _CHECKS.that(slots <= _SLOTS, "key_cache", f"at most {_SLOTS} slots", slots)
    _CHECKS.that(rows <= _ROWS, "query", f"at most {_ROWS} rows", rows)


ring_attention_16bit = define(
    "ring_attention_16bit(Tensor query, Tensor key_cache, Tensor value_cache, Tensor valid_length)"
    " -> Tensor",
    ring_attention_16bit_reference,
    _fake,
)
