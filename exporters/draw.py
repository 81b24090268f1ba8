"""Draws weights without a checkpoint."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

AFTER_SILU = 1.68
"""Restores the scale of a unit normal that went through SiLU: E[silu(x)^2] is 0.355."""


def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws a float32 tensor on the CPU that depends on the seed and its own name alone."""
    # torch's CPU generator takes 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(tuple(shape), generator=generator)
