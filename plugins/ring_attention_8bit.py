"""Operator ``ring_attention_8bit``: queries in 8 bits attend to a ring in 8 bits.

The ring is what ``qk_norm_rope_ring_write_static`` writes where its values are transposed and its
queries quantized, or has such a layout: keys and values may lack means, and values have a scale for
each channel.

NaN in FP8, in a scale or in a mean reaches the outputs that it counts for; INT8 has none.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks, dtype_name
from vidc.plugins.definition import define
from vidc.plugins.quantize import to_output
from vidc.plugins.ring_8bit import attend, restore_values
from vidc.plugins.transposed_values import GROUP

_CHECKS = Checks("ring_attention_8bit")
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
_HEAD_SIZES = (64, 128)
_SLOTS = 2**20
_ROWS = 2**31 - 128


class To8BitAttention(NamedTuple):
    """What the operator takes, in this order; a number is what is stored times its scale."""

    query: Tensor
    """``[B, T, H, D]``, int8 or float8_e4m3fn; ``D`` is 64 or 128."""
    query_scale: Tensor
    """Float32 ``[B, H, T]``, not negative."""
    key_cache: Tensor
    """``[B, S, H, D]``, the dtype of ``query``; may lack any vector that all keys share."""
    value_cache: Tensor
    """``[B, H, D, S']``, the same dtype; ``S'`` is a multiple of 16 and at least ``S``, its slots
    in the order of ``transposed_values.py``. What lies in slots that are not valid does not count,
    but in FP8 it must not be NaN."""
    key_scale: Tensor
    """Float32 ``[H]``, not negative."""
    value_scale: Tensor
    """Float32 ``[H, D]``."""
    value_mean: Tensor
    """Float32 ``[H, D]``: what values lack, added to the output."""
    valid_length: Tensor
    """How many slots, from the first, hold tokens, int64 ``[1]``; below 1 it counts as 1, above
    ``S`` as ``S``."""
    dtype: str
    """Of the output, by its name: bfloat16, float16 or float8_e4m3fn."""
    output_scale: Tensor | None = None
    """Float32 ``[1]`` that the output is divided by if it is FP8; None otherwise."""


def ring_attention_8bit_reference(*arguments: Any) -> Tensor:
    """Softmax attention of a block's queries over the valid slots of a ring, by exact weights.

    Kernels round the weights to 8 bits; what that adds to the error is in
    ``benchmarks/attention_8bit/README.md``.

    Args:
        arguments: those of ``To8BitAttention``.

    Returns:
        ``[B, T, H, D]`` of ``dtype``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    given = To8BitAttention(*arguments)
    dtype = _check(given)
    slots = given.key_cache.shape[1]
    valid = min(max(int(given.valid_length), 1), slots)
    attended = attend(
        given.query, given.query_scale, given.key_cache[:, :valid],
        restore_values(given.value_cache, slots)[:, :valid], given.key_scale, given.value_scale,
        given.value_mean, torch.float32,
    )  # fmt: skip
    return to_output(attended, dtype, given.output_scale).contiguous()


def _fake(*arguments: Any) -> Tensor:
    given = To8BitAttention(*arguments)
    return given.query.new_empty(given.query.shape, dtype=_check(given))


def _check(given: To8BitAttention) -> torch.dtype:
    """The dtype of the output."""
    checks, query, keys, values = _CHECKS, given.query, given.key_cache, given.value_cache
    checks.shape("query", query, ("B", "T", "H", "D"))
    checks.dtype("query", query, (torch.float8_e4m3fn, torch.int8))
    batch, tokens, heads, head_dim = query.shape
    sizes = " or ".join(map(str, _HEAD_SIZES))
    checks.that(head_dim in _HEAD_SIZES, "query", f"a head size of {sizes}", head_dim)
    checks.shape("key_cache", keys, (batch, "S", heads, head_dim))
    checks.dtype("key_cache", keys, (query.dtype,))
    slots = keys.shape[1]
    checks.that(slots <= _SLOTS, "key_cache", f"at most {_SLOTS} slots", slots)
    checks.shape("value_cache", values, (batch, heads, head_dim, "S'"))
    checks.dtype("value_cache", values, (query.dtype,))
    stored = values.shape[3]
    multiple = f"a number of slots that is a multiple of {GROUP}, from {slots} to {_SLOTS}"
    checks.that(stored % GROUP == 0 and slots <= stored <= _SLOTS, "value_cache", multiple, stored)
    rows = batch * tokens * heads
    checks.that(rows <= _ROWS, "query", f"at most {_ROWS} rows", rows)
    for name, scale, shape in (
        ("query_scale", given.query_scale, (batch, heads, tokens)),
        ("key_scale", given.key_scale, (heads,)),
        ("value_scale", given.value_scale, (heads, head_dim)),
        ("value_mean", given.value_mean, (heads, head_dim)),
    ):
        checks.shape(name, scale, shape)
        checks.dtype(name, scale, (torch.float32,))
    checks.shape("valid_length", given.valid_length, (1,))
    checks.dtype("valid_length", given.valid_length, (torch.int64,))
    names = tuple(map(dtype_name, _OUTPUTS))
    checks.that(given.dtype in names, "dtype", " or ".join(names), given.dtype)
    return checks.output(given.dtype, given.output_scale)


ring_attention_8bit = define(
    "ring_attention_8bit(Tensor query, Tensor query_scale, Tensor key_cache, Tensor value_cache,"
    " Tensor key_scale, Tensor value_scale, Tensor value_mean, Tensor valid_length, str dtype,"
    " Tensor? output_scale=None) -> Tensor",
    ring_attention_8bit_reference,
    _fake,
)
