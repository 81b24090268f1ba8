"""An 8-bit KV ring quantized at once from ordinary tensors, with scales of the whole ring.

Engines write theirs block by block, by ``qk_norm_rope_ring_write_static``, and apply neither
smoothing nor a mean of values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.plugins.quantize import quantize, quantize_heads
from vidc.plugins.transposed_values import GROUP, ORDER

VALUE_ROW = 128
"""Values of a channel are padded to a multiple of it: they begin on a line of the cache."""


@dataclass(frozen=True)
class RingScales:
    """Scales and means of a layer's keys and values by a calibration, float32.

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
    """Keys ``[B, S, H, D]`` and values ``[B, H, D, S']`` in ``ORDER``, 8 bits.

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
    centered = (key.float() - scales.key_mean) / scales.smooth
    return Ring8Bit(
        quantize(centered, scales.key_scale[:, None], dtype),
        transpose_values(quantize(value.float() - scales.value_mean, scales.value_scale, dtype)),
    )


def transpose_values(value: Tensor) -> Tensor:
    """``[B, S, H, D]`` to ``[B, H, D, S']`` with each 16 keys in ``ORDER``, contiguous."""
    # As bytes: not every version of torch pads FP8.
    keys = value.view(torch.int8).permute(0, 2, 3, 1)
    padded = torch.nn.functional.pad(keys, (0, -keys.shape[3] % VALUE_ROW))
    order = torch.tensor(ORDER, device=value.device)
    groups = torch.unflatten(padded, 3, (-1, GROUP))
    return torch.flatten(groups[..., order], 3).contiguous().view(value.dtype)
