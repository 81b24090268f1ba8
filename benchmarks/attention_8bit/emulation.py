"""What the kernel of ``plugins/cuda/sm90_ring_attention.cuh`` computes, step by step in PyTorch.

Sums of integers are exact in float32 up to 2^24, so the products are bit for bit the kernel's. Only
its exponential differs, in the last bits, which moves a rounded weight by one here and there.
"""

import math

import torch
from torch import Tensor

from vidc.plugins.ring_int8 import Int8Ring, RingScales, restore_values

BLOCK = 128
BIAS = 1.5 * 2**23
LARGEST_WEIGHT = 255.0
SLACK = 64.0
LEAST_SCALE = 1e-30


def products(query: Tensor, key: Tensor) -> Tensor:
    """Dot products ``[B, H, T, S]`` of int8 ``[B, T, H, D]`` and ``[B, S, H, D]``, float32."""
    return query.permute(0, 2, 1, 3).float() @ key.permute(0, 2, 3, 1).float()


def rounded_up(x: Tensor) -> Tensor:
    """The least float32 that is not less."""
    nearest = x.float()
    return torch.where(nearest < x, nearest.nextafter(torch.full_like(nearest, torch.inf)), nearest)


def emulate(
    query: Tensor, query_scale: Tensor, ring: Int8Ring, scales: RingScales, valid_length: int
) -> Tensor:
    """The kernel's output before it is rounded to its dtype: float32 ``[B, T, H, D]``.

    Args:
        query: int8 ``[B, T, H, D]``.
        query_scale: ``[B, T, H]``.
        ring: keys and values.
        scales: of the layer.
        valid_length: slots that count.
    """
    batch, tokens, heads, head_dim = query.shape
    slots = ring.key.shape[1]
    value = restore_values(ring.value, slots).permute(0, 2, 1, 3).float()
    scale = query_scale.transpose(1, 2)[..., None] * (
        scales.key_scale[:, None, None] * (math.log2(math.e) / math.sqrt(head_dim))
    )
    scale = scale.clamp(min=LEAST_SCALE)
    output = query.new_zeros((batch, heads, tokens, head_dim), dtype=torch.float32)
    total = query.new_zeros((batch, heads, tokens, 1), dtype=torch.float32)
    reference = None
    for start in range(0, valid_length, BLOCK):
        end = min(start + BLOCK, valid_length)
        biased = products(query, ring.key[:, start:end]) + BIAS
        maximum = rounded_up(biased.amax(dim=3, keepdim=True).double() * scale)
        reference = maximum if reference is None else reference
        weight = torch.exp2((biased.double() * scale - maximum).float())
        # The sum is exact in double, and its rounding is that of the fused multiply-add.
        rounded = (weight.half().double() * LARGEST_WEIGHT + 1024).half().float() - 1024
        moved = torch.where(maximum - reference > SLACK, maximum, reference)
        shrink = torch.exp2(reference - moved)
        factor = torch.exp2(maximum - moved)
        output = output * shrink + (rounded @ value[:, :, start:end]) * factor
        total = total * shrink + rounded.sum(dim=3, keepdim=True) * factor
        reference = moved
    result = (output / total).permute(0, 2, 1, 3)
    return result * scales.value_scale + scales.value_mean
