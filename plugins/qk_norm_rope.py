"""From packed projections to rotated queries and keys: the reference's and the kernels' arithmetic.

What the forms of ``qk_norm_rope_ring_write`` share.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.plugins.arguments import Checks

HEAD_SIZES = (32, 64, 128)
"""Kernels are tested for these; attention has kernels for the larger two."""


def split_heads(qkv: Tensor, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each ``[B, T, H, D]``, of projections ``[B, T, 3 H D]``."""
    query, key, value = qkv.reshape(*qkv.shape[:2], 3, -1, head_dim).unbind(2)
    return query, key, value


def normalise_and_rotate(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """RMS normalisation over all heads, then the rotary embedding of adjacent channel pairs.

    The normalised values are rounded to the dtype of ``x``, as the model rounds them; the rotation
    is left in float32.

    Args:
        x: ``[B, T, H, D]``.
        weight: ``[H D]``, the same dtype.
        cos: float32 ``[T, D / 2]``.
        sin: the same.
        eps: added to the mean square.
    """
    normed = F.rms_norm(x.float().flatten(2), weight.shape, weight.float(), eps).to(x.dtype)
    even, odd = normed.float().reshape(*x.shape[:3], -1, 2).unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    rotated = (even * cos - odd * sin, even * sin + odd * cos)
    return torch.stack(rotated, -1).flatten(-2)


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
    """Checks what all forms take alike, against the shape ``[B, S, H, D]`` of the ring's keys."""
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
