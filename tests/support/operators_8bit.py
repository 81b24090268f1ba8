"""Inputs for the operators that write a ring of 8 bits, and for the one that reads it."""

import torch
from operators import FP8, Ring, draw, qkv_arguments
from torch import Tensor

from vidc.plugins.arguments import dtype_name
from vidc.plugins.transposed_values import padded_slots


def arguments(
    ring: Ring,
    dtype: torch.dtype = torch.bfloat16,
    to: torch.dtype = FP8,
    seed: int = 1,
    deviation: float = 1.0,
    transposed: bool = True,
    quantized: bool = True,
    mean: bool = True,
) -> dict[str, object]:
    """Arguments of ``qk_norm_rope_ring_write_static``; caches hold values already."""
    tensor = draw(seed + 1000)
    taken = qkv_arguments(ring, dtype, seed, deviation)
    shape = (ring.batch, ring.window, ring.heads, ring.head_dim)
    stored = padded_slots(ring.window)
    values = (ring.batch, ring.heads, ring.head_dim, stored) if transposed else shape
    step = 3 / (448 if to is FP8 else 127)
    return {
        **{name: value for name, value in taken.items() if name not in ("sink", "eps")},
        "key_cache": tensor(*shape, deviation=20).to(to),
        "value_cache": tensor(*values, deviation=20).to(to),
        "key_scale": (tensor(ring.heads).abs() + 0.5) * step,
        "value_scale": (tensor(ring.heads).abs() + 0.5) * step * deviation,
        "key_mean": tensor(ring.heads, ring.head_dim) if mean else None,
        "sink": ring.sink,
        "eps": taken["eps"],
        "value_transposed": transposed,
        "quantize_query": quantized,
    }


def attention_arguments(
    batch: int = 2,
    tokens: int = 5,
    heads: int = 3,
    head_dim: int = 64,
    slots: int = 40,
    stored: int = 48,
    valid: int = 37,
    of: torch.dtype = FP8,
    output: torch.dtype = torch.bfloat16,
    seed: int = 1,
) -> dict[str, object]:
    """Arguments of ``ring_attention_8bit``; logits are some units apart."""
    tensor = draw(seed)
    largest = 448 if of is FP8 else 127

    def numbers(*shape: int) -> Tensor:
        values = tensor(*shape, deviation=largest / 4).clamp(-largest, largest)
        return (values if of is FP8 else values.round()).to(of)

    def scales(*shape: int) -> Tensor:
        return (tensor(*shape).abs() + 0.5) * 4 / largest

    return {
        "query": numbers(batch, tokens, heads, head_dim),
        "query_scale": scales(batch, heads, tokens),
        "key_cache": numbers(batch, slots, heads, head_dim),
        "value_cache": numbers(batch, heads, head_dim, stored),
        "key_scale": scales(heads),
        "value_scale": scales(heads, head_dim),
        "value_mean": tensor(heads, head_dim),
        "valid_length": torch.tensor([valid]),
        "dtype": dtype_name(output),
        "output_scale": torch.tensor([0.02]) if output is FP8 else None,
    }
