"""Calls of the fused operators for a tool that watches memory: on a GPU, and on a CPU.

Rows of a part of a warp up to a block's 32 warps, LongLive's among them, and those beside: what
sums over warps does nothing where there is one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from operators import (
    FLOATS,
    FP8,
    Ring,
    frame_arguments,
    gelu_arguments,
    group_norm_arguments,
    qkv_arguments,
    sampler_arguments,
)
from operators_8bit import arguments as to_8bit_arguments

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.temporal_attention import temporal_attention

Call = tuple[torch._ops.OpOverload, dict[str, Any]]
WIDTHS = (8, 24, 264, 1528, 1536, 5120, 8192)
RINGS = (
    Ring(batch=1, tokens=5, heads=3, head_dim=32, window=16, sink=3, position=10),
    Ring(batch=2, tokens=21, heads=3, head_dim=64, window=48, sink=7, position=40),
    Ring(batch=1, tokens=70, heads=2, head_dim=128, window=160, sink=40, position=130),
    Ring(batch=1, tokens=9, heads=12, head_dim=128, window=16, sink=0, position=2**33),
    Ring(batch=1, tokens=3, heads=64, head_dim=128, window=16, sink=2, position=1),
)
"""Blocks that wrap, begin in the sink, and have few and many warps to a token."""


def rows() -> Iterator[Call]:
    """Cases of every width and pair of dtypes, with a number of rows that no group divides."""
    for width in WIDTHS:
        for dtype in FLOATS:
            for output in (*FLOATS, FP8):
                yield (
                    gelu_quantize,
                    gelu_arguments(1, 7, width, dtype, output, centered=output is FP8),
                )


def ring_writes() -> Iterator[Call]:
    """Yields cases of every head size; 8-bit ones with values and queries of every form."""
    for ring in RINGS:
        for dtype in FLOATS:
            yield qk_norm_rope_ring_write, qkv_arguments(ring, dtype, 1)
        for to in (FP8, torch.int8):
            for transposed in (False, True):
                yield (
                    qk_norm_rope_ring_write_static,
                    to_8bit_arguments(ring, to=to, transposed=transposed, quantized=transposed),
                )


def clips() -> Iterator[Call]:
    """Yields calls of a clip's operators with tails: of blocks, chunks, tiles and vectors."""
    for channels in (24, 320, 2560):
        for images, pixels in ((1, 1), (3, 77)):
            yield group_norm_silu, group_norm_arguments(images, pixels, channels, 8)
    for frames in (1, 14, 25, 32):
        yield temporal_attention, frame_arguments(3, frames, 1, 3)
    for fresh in (False, True):
        for size in ((4, 1, 1), (4, 20, 30)):
            yield sampler_step, sampler_arguments(2 - fresh, 3, size, fresh=fresh)
