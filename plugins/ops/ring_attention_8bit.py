"""Operator ``ring_attention_8bit``: attention of 8-bit queries to an 8-bit ring.

The ring has the layout that ``qk_norm_rope_ring_write_static`` writes with transposed values and
quantized queries. Values have a scale and a mean per channel.

NaN in FP8 numbers, in a scale or in a mean reaches the outputs that depend on it; INT8 has no NaN.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks, dtype_name
from vidc.plugins.definition import define
from vidc.plugins.quantize import to_output
from vidc.plugins.transposed_values import GROUP, stored_at

_CHECKS = Checks("ring_attention_8bit")
_OUTPUTS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn)
_HEAD_SIZES = (64, 128)
_SLOTS = 2**20
_ROWS = 2**31 - 128


class AttentionArguments(NamedTuple):
    """Arguments of the operator, in this order."""

    query: Tensor
    """``[B, T, H, D]``, int8 or float8_e4m3fn; ``D`` is 64 or 128."""
    query_scale: Tensor
    """Float32 ``[B, H, T]``, not negative."""
    key_cache: Tensor
    """``[B, S, H, D]``, the dtype of ``query``; softmax ignores an offset that all keys share."""
    value_cache: Tensor
    """``[B, H, D, S']``, the same dtype; ``S'`` is a multiple of 16 and at least ``S``. Slots have
    the order of ``transposed_values.py``; those that are not valid may have any content but NaN."""
    key_scale: Tensor
    """Float32 ``[H]``, not negative."""
    value_scale: Tensor
    """Float32 ``[H, D]``."""
    value_mean: Tensor
    """Float32 ``[H, D]``, the mean subtracted from values; added to the output."""
    valid_length: Tensor
    """Number of valid slots from the first on, int64 ``[1]``, clamped to ``[1, S]``."""
    dtype: str
    """Output dtype: bfloat16, float16 or float8_e4m3fn."""
    output_scale: Tensor | None = None
    """Float32 ``[1]`` that divides an FP8 output; None for other dtypes."""


def restore_values(transposed: Tensor, slots: int) -> Tensor:
    """Returns the first slots of a transposed value ring ``[B, H, D, S']`` as ``[B, S, H, D]``."""
    # As bytes: PyTorch cannot index FP8 on a CPU.
    places = stored_at(torch.arange(slots, device=transposed.device))
    values = transposed.view(torch.int8)[..., places]
    return values.permute(0, 3, 1, 2).contiguous().view(transposed.dtype)


def attend(
    query: Tensor,
    query_scale: Tensor,
    key: Tensor,
    value: Tensor,
    key_scale: Tensor,
    value_scale: Tensor,
    value_mean: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Returns attention of 8-bit queries, keys and values with unquantized softmax weights.

    Args:
        query: ``[B, T, H, D]``.
        query_scale: ``[B, H, T]``.
        key: ``[B, S, H, D]``, all valid.
        value: ``[B, S, H, D]``, not transposed.
        key_scale: ``[H]``.
        value_scale: ``[H, D]``.
        value_mean: ``[H, D]``.
        dtype: dtype of the computation.

    Returns:
        ``[B, T, H, D]`` of ``dtype``.
    """
    keys = key.to(dtype) * key_scale[:, None].to(dtype)
    values = value.to(dtype) * value_scale.to(dtype) + value_mean.to(dtype)
    queries = query.to(dtype) * query_scale.mT[..., None].to(dtype)
    logits = torch.einsum("bthd,bshd->bhts", queries, keys) / query.shape[3] ** 0.5
    return torch.einsum("bhts,bshd->bthd", torch.softmax(logits, dim=3), values)


def ring_attention_8bit_reference(*arguments: Any) -> Tensor:
    """Softmax attention of a block's queries over the valid slots of a ring.

    Kernels also quantize the softmax weights; ``benchmarks/attention_8bit/README.md`` has the error
    that this adds.

    Args:
        arguments: the fields of ``AttentionArguments``.

    Returns:
        ``[B, T, H, D]`` of ``dtype``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    args = AttentionArguments(*arguments)
    dtype = _check(args)
    slots = args.key_cache.shape[1]
    valid = min(max(int(args.valid_length), 1), slots)
    attended = attend(
        args.query, args.query_scale, args.key_cache[:, :valid],
        restore_values(args.value_cache, slots)[:, :valid], args.key_scale, args.value_scale,
        args.value_mean, torch.float32,
    )  # fmt: skip
    return to_output(attended, dtype, args.output_scale).contiguous()


def _fake(*arguments: Any) -> Tensor:
    args = AttentionArguments(*arguments)
    return args.query.new_empty(args.query.shape, dtype=_check(args))


def _check(args: AttentionArguments) -> torch.dtype:
    """Checks the arguments; returns the output dtype."""
    checks, query, keys, values = _CHECKS, args.query, args.key_cache, args.value_cache
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
        ("query_scale", args.query_scale, (batch, heads, tokens)),
        ("key_scale", args.key_scale, (heads,)),
        ("value_scale", args.value_scale, (heads, head_dim)),
        ("value_mean", args.value_mean, (heads, head_dim)),
    ):
        checks.shape(name, scale, shape)
        checks.dtype(name, scale, (torch.float32,))
    checks.shape("valid_length", args.valid_length, (1,))
    checks.dtype("valid_length", args.valid_length, (torch.int64,))
    names = tuple(map(dtype_name, _OUTPUTS))
    checks.that(args.dtype in names, "dtype", " or ".join(names), args.dtype)
    return checks.output(args.dtype, args.output_scale)


ring_attention_8bit = define(
    "ring_attention_8bit(Tensor query, Tensor query_scale, Tensor key_cache, Tensor value_cache,"
    " Tensor key_scale, Tensor value_scale, Tensor value_mean, Tensor valid_length, str dtype,"
    " Tensor? output_scale=None) -> Tensor",
    ring_attention_8bit_reference,
    _fake,
)
