"""Conversion of decoded pixels to bytes."""

import torch
from torch import Tensor

COLORS = 3


def levels(pixels: Tensor) -> Tensor:
    """Converts pixels ``[B, frames, 3, H, W]`` from -1 to 1 to uint8 ``[B, frames, H, W, 3]``."""
    scaled = pixels.permute(0, 1, 3, 4, 2).add(1).mul_(127.5).round_().clamp_(0, 255)
    return scaled.to(torch.uint8, memory_format=torch.contiguous_format)
