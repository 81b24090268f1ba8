"""Check that vidc's kernels support the sizes of an 8-bit ring."""

import torch
from torch import Tensor

from vidc.exporters.part import Attention
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit
from vidc.plugins.transposed_values import padded_slots


def ring_refusal(ring: Attention, dtype: torch.dtype, computes: bool) -> str | None:
    """Returns why no kernel writes or reads an 8-bit ring; None if kernels do.

    It calls the operators on meta tensors with one call's sizes, so that their own checks run.

    Args:
        ring: sizes of the attention.
        dtype: dtype of the ring.
        computes: True if queries are quantized, False if they stay in high precision.
    """
    batch, heads, head_dim, slots = ring.batch, ring.heads, ring.head_dim, ring.slots
    tokens, width = ring.tokens // batch, heads * head_dim

    def empty(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    length = empty(1, of=torch.int64)
    qkv = empty(batch, tokens, 3 * width, of=torch.bfloat16)
    norm, angles = empty(width, of=torch.bfloat16), empty(tokens, head_dim // 2)
    keys = empty(batch, slots, heads, head_dim, of=dtype)
    transposed = empty(batch, heads, head_dim, padded_slots(slots), of=dtype)
    values = transposed if computes else keys
    scale, by_channel = empty(heads), empty(heads, head_dim)
    try:
        query, query_scale = qk_norm_rope_ring_write_static(
            qkv, norm, norm, angles, angles, length, keys, values, scale, scale, None, 0, 1e-6,
            computes, computes,
        )  # fmt: skip
        if computes:
            ring_attention_8bit(
                query, query_scale, keys, values, scale, by_channel, by_channel, length, "bfloat16"
            )
        else:
            wide = keys.to(query.dtype)
            ring_attention_16bit(query, wide, wide, length)
    except UsageError as error:
        return error.message
    return None
