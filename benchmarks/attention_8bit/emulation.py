"""Emulates the kernel of ``plugins/cuda/sm90_ring_attention.cuh`` step by step in PyTorch.

INT8: sums of integers are exact in float32 up to 2^24, so the products are bit for bit the
kernel's. Only its exponential differs, in the last bits, which moves a rounded weight by one here
and there.

FP8: the matrix units drop bits of their sums, which also moves a rounded weight here and there; and
where the kernel computes a tile in parts, each has a reference of its own, and weights are rounded
relative to that.
"""

import math

import torch
from torch import Tensor

from attention_8bit.ring import Ring8Bit, RingScales
from vidc.plugins.ops.ring_attention_8bit import restore_values
from vidc.plugins.quantize import LARGEST

BLOCK = 128
BIAS = 1.5 * 2**23
LARGEST_WEIGHT = 255.0
SLACK = 64.0
LEAST_SCALE = 1e-30
E4M3 = torch.float8_e4m3fn
E4M3_AT_REFERENCE = 7.0
E4M3_SLACK = 8.807 - E4M3_AT_REFERENCE
LINE_KEYS = 16
"""Keys whose weights are exact and keys whose exponentials are lines take turns by so many."""
LINE_EXCESS = 0.0575
HALF_BIAS = 15
"""Bias of float16's exponents."""


def products(query: Tensor, key: Tensor) -> Tensor:
    """Dot products ``[B, H, T, S]`` of 8-bit ``[B, T, H, D]`` and ``[B, S, H, D]``, float32."""
    return query.permute(0, 2, 1, 3).float() @ key.permute(0, 2, 3, 1).float()


def rounded_up(x: Tensor) -> Tensor:
    """The least float32 that is not less."""
    nearest = x.float()
    return torch.where(nearest < x, nearest.nextafter(torch.full_like(nearest, torch.inf)), nearest)


def emulate(
    query: Tensor, query_scale: Tensor, ring: Ring8Bit, scales: RingScales, valid_length: int
) -> Tensor:
    """The kernel's output before it is rounded to its dtype: float32 ``[B, T, H, D]``.

    Args:
        query: int8 or float8_e4m3fn ``[B, T, H, D]``.
        query_scale: ``[B, H, T]``.
        ring: keys and values, of the same dtype.
        scales: of the layer.
        valid_length: slots that count.
    """
    head_dim = query.shape[3]
    value = restore_values(ring.value, ring.key.shape[1]).permute(0, 2, 1, 3).float()
    scale = query_scale[..., None] * (
        scales.key_scale[:, None, None] * (math.log2(math.e) / math.sqrt(head_dim))
    )
    attend = _attend_e4m3 if query.dtype == E4M3 else _attend_int8
    result = attend(query, scale.clamp(min=LEAST_SCALE), ring, value, valid_length)
    return result.permute(0, 2, 1, 3) * scales.value_scale + scales.value_mean


def _attend_int8(
    query: Tensor, scale: Tensor, ring: Ring8Bit, value: Tensor, valid_length: int
) -> Tensor:
    """``[B, H, T, D]`` in units of the values; ``scale`` ``[B, H, T, 1]`` makes logits, base 2."""
    output, total = _nothing(query)
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
    return output / total


def _attend_e4m3(
    query: Tensor, scale: Tensor, ring: Ring8Bit, value: Tensor, valid_length: int
) -> Tensor:
    output, total = _nothing(query)
    reference = torch.full_like(total, -torch.inf)
    for start in range(0, valid_length, BLOCK):
        end = min(start + BLOCK, valid_length)
        logits = products(query, ring.key[:, start:end]) * scale
        maximum = logits.amax(dim=3, keepdim=True)
        moved = torch.where(maximum - reference > E4M3_SLACK, maximum, reference)
        shrink = torch.exp2(reference - moved)
        reference = moved
        rounded = e4m3_weights(logits - reference + E4M3_AT_REFERENCE)
        output = output * shrink + rounded @ value[:, :, start:end]
        total = total * shrink + rounded.sum(dim=3, keepdim=True)
    return output / total


def e4m3_weights(logarithm: Tensor) -> Tensor:
    """Rounded weights of a block of keys from their base-2 logarithms, both ``[..., keys]``."""
    by_line = torch.arange(logarithm.shape[-1], device=logarithm.device) // LINE_KEYS % 2 == 1
    weight = torch.where(by_line, exp2_by_line(logarithm), torch.exp2(logarithm))
    return weight.clamp(max=LARGEST[E4M3]).to(E4M3).float()


def exp2_by_line(logarithm: Tensor) -> Tensor:
    """``2^x`` as a straight line between powers of two, less its mean excess.

    N. N. Schraudolph, "A Fast, Compact Approximation of the Exponential Function", 1999; here the
    bits are those of float16.
    """
    biased = (logarithm + (HALF_BIAS - LINE_EXCESS)).clamp(min=0)
    exponent = biased.floor().clamp(min=1)
    line = torch.where(biased < 1, biased, 1 + biased - exponent)
    return line * torch.exp2(exponent - HALF_BIAS)


def _nothing(query: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, H, T, D]`` and sums of weights ``[B, H, T, 1]``, zero."""
    batch, tokens, heads, head_dim = query.shape
    output = query.new_zeros((batch, heads, tokens, head_dim), dtype=torch.float32)
    return output, output[..., :1].clone()
