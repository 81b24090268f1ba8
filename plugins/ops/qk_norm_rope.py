"""Operator ``qk_norm_rope``, and the arithmetic that ``qk_norm_rope_ring_write*`` shares with it.

The operator marks the place in an exported graph where a backend with kernels puts
``qk_norm_rope_ring_write`` or its 8-bit variant; it has no kernel of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define_composite

_CHECKS = Checks("qk_norm_rope")
HEAD_SIZES = (32, 64, 128)
"""Head sizes of the kernels; attention has kernels for the larger two."""


def split_heads(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits ``[B, T, 3 H D]`` into queries, keys and values, each ``[B, T, H, D]``."""
    query, key, value = qkv.reshape(*qkv.shape[:2], 3, -1, head_dim).unbind(2)
    return query, key, value


def normalize_and_rotate(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """Applies RMS norm over all heads, then rotary embedding to adjacent channel pairs.

    The normalized values are rounded to the dtype of ``x``, as in the model.

    Args:
        x: ``[B, T, H, D]``.
        weight: ``[H D]``, the same dtype.
        cos: float32 ``[T, D / 2]``.
        sin: float32 ``[T, D / 2]``.
        eps: added to the mean square.

    Returns:
        Float32 ``[B, T, H, D]``.
    """
    return _rotated_rows(x.flatten(2), weight, cos, sin, x.shape[2], eps)


def normalize_rows(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Applies RMS norm to ``[B, T, H D]`` in float32, rounded to the dtype of ``rows``."""
    return F.rms_norm(rows.float(), weight.shape, weight.float(), eps).to(rows.dtype)


def _rotated_rows(
    rows: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, heads: int, eps: float
) -> Tensor:
    """Normalizes and rotates ``[B, T, H D]`` to float32 ``[B, T, H, D]``."""
    normed = normalize_rows(rows, weight, eps)
    even, odd = normed.float().reshape(*rows.shape[:2], heads, -1, 2).unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    rotated = (even * cos - odd * sin, even * sin + odd * cos)
    return torch.stack(rotated, -1).flatten(-2)


def qk_norm_rope_reference(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Normalizes and rotates queries and keys in float32, rounding to the dtype after each.

    Args:
        query: projected queries, ``[B, T, H D]``.
        key: projected keys, ``[B, T, H D]``.
        query_weight: weight of the RMS norm over all heads, ``[H D]``.
        key_weight: the same for keys.
        cos: cosines of the rotary embedding, float32 ``[T, D / 2]``.
        sin: sines, float32 ``[T, D / 2]``.
        heads: ``H``.
        eps: epsilon of the norm.

    Returns:
        Queries and keys, each ``[B, T, H, D]``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(query, key, query_weight, key_weight, cos, sin, heads)
    rotated = _rotated_rows(query, query_weight, cos, sin, heads, eps).to(query.dtype)
    return rotated, _rotated_rows(key, key_weight, cos, sin, heads, eps).to(key.dtype)


def _check(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
) -> None:
    _CHECKS.shape("query", query, ("B", "T", "H D"))
    _CHECKS.shape("key", key, tuple(query.shape))
    tokens, width = query.shape[1:]
    even = heads > 0 and width % (2 * heads) == 0
    _CHECKS.that(
        even, "heads", f"a number of heads that gives an even head size for width {width}", heads
    )
    _CHECKS.dtype("key", key, (query.dtype,))
    for name, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        _CHECKS.shape(name, weight, (width,))
        _CHECKS.dtype(name, weight, (query.dtype,))
    for name, angles in (("cos", cos), ("sin", sin)):
        _CHECKS.shape(name, angles, (tokens, width // heads // 2))
        _CHECKS.dtype(name, angles, (torch.float32,))


def _fake(query: Tensor, key: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    *checked, _ = others
    _check(query, key, *checked)
    heads = checked[-1]
    shape = (*query.shape[:2], heads, query.shape[2] // heads)
    return query.new_empty(shape), key.new_empty(shape)


def check_qkv(
    checks: Checks,
    qkv: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    ring: Sequence[int],
    sink: int,
) -> None:
    """Checks the shared arguments against the shape ``[B, S, H, D]`` of the key cache."""
    batch, slots, heads, head_dim = ring
    width = heads * head_dim
    sizes = "a head size of 32, 64 or 128"
    checks.that(head_dim in HEAD_SIZES, "key_cache", sizes, head_dim)
    checks.width("key_cache", width)
    checks.shape("qkv", qkv, (batch, "T", 3 * width))
    tokens = qkv.shape[1]
    for name, weight in (("query_weight", query_weight), ("key_weight", key_weight)):
        checks.shape(name, weight, (width,))
        checks.dtype(name, weight, (qkv.dtype,))
    for name, angles in (("cos", cos), ("sin", sin)):
        checks.shape(name, angles, (tokens, head_dim // 2))
        checks.dtype(name, angles, (torch.float32,))
    checks.shape("position", position, (1,))
    checks.dtype("position", position, (torch.int64,))
    checks.that(tokens <= slots, "qkv", f"at most {slots} tokens", tokens)
    checks.that(0 <= sink < slots, "sink", f"from 0 to {slots - 1}", sink)


qk_norm_rope = define_composite(
    "qk_norm_rope(Tensor query, Tensor key, Tensor query_weight, Tensor key_weight, Tensor cos,"
    " Tensor sin, int heads, float eps) -> (Tensor, Tensor)",
    qk_norm_rope_reference,
    _fake,
)
