"""Inputs for the operators that write a ring of 8 bits."""

import torch
from operators import FP8, Ring, draw, qkv_arguments


def arguments(
    ring: Ring,
    dynamic: bool,
    dtype: torch.dtype = torch.bfloat16,
    to: torch.dtype = FP8,
    seed: int = 1,
    deviation: float = 1.0,
    transposed: bool = True,
    quantized: bool = True,
    mean: bool = True,
) -> dict[str, object]:
    """What ``qk_norm_rope_ring_write_static`` or ``_dynamic`` takes; caches hold values already."""
    tensor = draw(seed + 1000)
    taken = qkv_arguments(ring, dtype, seed, deviation)
    shape = (ring.batch, ring.window, ring.heads, ring.head_dim)
    values = (ring.batch, ring.heads, ring.head_dim, ring.window) if transposed else shape
    scales = (ring.batch, ring.heads, ring.window) if dynamic else (ring.heads,)
    step = 3 / (448 if to is FP8 else 127)
    return {
        **{name: value for name, value in taken.items() if name not in ("sink", "eps")},
        "key_cache": tensor(*shape, deviation=20).to(to),
        "value_cache": tensor(*values, deviation=20).to(to),
        "key_scale": (tensor(*scales).abs() + 0.5) * step,
        "value_scale": (tensor(*scales).abs() + 0.5) * step * deviation,
        "key_mean": tensor(ring.heads, ring.head_dim) if mean else None,
        "sink": ring.sink,
        "eps": taken["eps"],
        "value_transposed": transposed,
        "quantize_query": quantized,
    }
