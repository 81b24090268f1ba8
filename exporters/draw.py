"""Standard normal tensors for weights without a checkpoint."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor


def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws a float32 tensor on the CPU that depends on the seed and its own name alone."""
    # torch's CPU generator takes 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return torch.randn(tuple(shape), generator=generator)
