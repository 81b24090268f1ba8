"""The 8-bit ring: how keys, values and queries are rounded, and how values lie in memory.

Numbers are INT8 or FP8 (E4M3), all of a ring alike.

Plain PyTorch, on any device; the truth that kernels are held to. What the kernel makes of it is in
``cuda/ring_attention.h``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.plugins.quantize import quantize, quantize_heads

KEY_ORDER = (0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)
"""Which key of each 16 a place of the transposed values holds.

The matrix instructions leave a thread with the logits of keys ``2q, 2q + 1, 8 + 2q, 9 + 2q`` of 16,
and want from it four neighbours of the operand that multiplies the values. In this order these are
the same, and no thread needs another's.
"""

VALUE_ROW = 128
"""Values of a channel are padded to a multiple of it: they begin on a line of the cache."""


@dataclass(frozen=True)
class RingScales:
    """What a calibration fixes for the keys and values of a layer, float32.

    ``smooth`` divides keys and multiplies queries: one number for both channels of a RoPE pair, so
    that it commutes with RoPE and folds into the weights of the norms before it. ``key_mean`` is
    what keys lose, after RoPE: it adds the same to all logits of a row, so the softmax does not see
    it. ``value_mean`` is what values lose and the output gets back: a softmax's weights sum to one.
    """

    smooth: Tensor
    """``[H, D]``."""
    key_mean: Tensor
    """``[H, D]``, of keys before they are divided."""
    key_scale: Tensor
    """``[H]``: a key's size for each unit of its 8-bit numbers."""
    value_mean: Tensor
    """``[H, D]``."""
    value_scale: Tensor
    """``[H, D]``."""


@dataclass(frozen=True)
class Ring8Bit:
    """Keys ``[B, S, H, D]`` and values ``[B, H, D, S']`` in ``KEY_ORDER``, 8 bits.

    ``S'`` is ``S`` rounded up to a multiple of ``VALUE_ROW``.
    """

    key: Tensor
    value: Tensor


def quantize_queries(
    query: Tensor, scales: RingScales, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """Queries with a scale for each token and head.

    Args:
        query: ``[B, T, H, D]``, after RoPE.
        scales: of the layer.
        dtype: int8 or float8_e4m3fn.

    Returns:
        ``dtype`` ``[B, T, H, D]`` and float32 ``[B, H, T]``.
    """
    return quantize_heads(query.float() * scales.smooth, dtype)


def quantize_ring(
    key: Tensor, value: Tensor, scales: RingScales, dtype: torch.dtype = torch.int8
) -> Ring8Bit:
    """A ring's keys, after RoPE, and values, both ``[B, S, H, D]``, as the kernel reads them."""
    centred = (key.float() - scales.key_mean) / scales.smooth
    return Ring8Bit(
        quantize(centred, scales.key_scale[:, None], dtype),
        transpose_values(quantize(value.float() - scales.value_mean, scales.value_scale, dtype)),
    )


def transpose_values(value: Tensor) -> Tensor:
    """``[B, S, H, D]`` to ``[B, H, D, S']`` with each 16 keys in ``KEY_ORDER``, contiguous."""
    group = len(KEY_ORDER)
    # As bytes: not every version of torch pads FP8.
    keys = value.view(torch.int8).permute(0, 2, 3, 1)
    padded = torch.nn.functional.pad(keys, (0, -keys.shape[3] % VALUE_ROW))
    order = torch.tensor(KEY_ORDER, device=value.device)
    groups = torch.unflatten(padded, 3, (-1, group))
    return torch.flatten(groups[..., order], 3).contiguous().view(value.dtype)


def restore_values(transposed: Tensor, slots: int) -> Tensor:
    """Inverse of ``transpose_values`` for a ring of ``slots`` keys."""
    group = len(KEY_ORDER)
    order = torch.tensor(KEY_ORDER, device=transposed.device).argsort()
    places = torch.unflatten(transposed.view(torch.int8), 3, (-1, group))
    keys = torch.flatten(places[..., order], 3)[..., :slots]
    return keys.permute(0, 3, 1, 2).contiguous().view(transposed.dtype)


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
    """Attention with 8-bit numbers and exact weights.

    What a kernel adds to the error of these numbers shows against this.

    Args:
        query: ``[B, T, H, D]``.
        query_scale: ``[B, H, T]``.
        key: ``[B, S, H, D]``, all of which count.
        value: ``[B, S, H, D]``, not transposed.
        key_scale: ``[H]``, or ``[B, H, S]``.
        value_scale: ``[H, D]``, or ``[B, H, S]``.
        value_mean: ``[H, D]``.
        dtype: that it is computed in.

    Returns:
        ``[B, T, H, D]`` of ``dtype``.
    """
    key_scale = key_scale[:, None] if key_scale.dim() == 1 else _of_each_token(key_scale)
    value_scale = value_scale if value_scale.dim() == 2 else _of_each_token(value_scale)
    keys = key.to(dtype) * key_scale.to(dtype)
    values = value.to(dtype) * value_scale.to(dtype) + value_mean.to(dtype)
    queries = query.to(dtype) * _of_each_token(query_scale).to(dtype)
    logits = torch.einsum("bthd,bshd->bhts", queries, keys) / query.shape[3] ** 0.5
    return torch.einsum("bhts,bshd->bthd", torch.softmax(logits, dim=3), values)


def _of_each_token(scale: Tensor) -> Tensor:
    """``[B, H, T]`` to ``[B, T, H, 1]``."""
    return scale.transpose(1, 2)[..., None]
