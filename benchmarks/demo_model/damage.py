"""What a codec, a blur or noise does to a clip, for tests of the scorer."""

import io
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def noisy(clip: Tensor, deviation: float, seed: int) -> Tensor:
    """A clip with Gaussian noise, not clipped, so that none of it is lost."""
    generator = torch.Generator().manual_seed(seed)
    return clip + deviation * torch.randn(clip.shape, generator=generator).to(clip.device)


def blurred(clip: Tensor, deviation: float) -> Tensor:
    """A clip ``[3, T, H, W]`` under a Gaussian blur of so many pixels, edges repeated."""
    reach = math.ceil(3 * deviation)
    taps = torch.softmax(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * deviation**2), 0)
    for dim in (-1, -2):
        size = clip.shape[dim]
        shifted = (
            torch.arange(size, device=clip.device) + offset for offset in range(-reach, reach + 1)
        )
        parts = (clip.index_select(dim, index.clamp(0, size - 1)) for index in shifted)
        clip = torch.stack([tap * part for tap, part in zip(taps, parts, strict=True)]).sum(0)
    return clip


def as_jpeg(clip: Tensor, quality: int) -> Tensor:
    """A clip ``[3, T, H, W]`` after each frame was a JPEG: blocks, and color at half the size."""
    frames = []
    pixels = ((clip.clamp(-1, 1) + 1) * 127.5).round().byte().cpu()
    for frame in pixels.permute(1, 2, 3, 0).numpy():
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "jpeg", quality=quality)
        frames.append(np.asarray(Image.open(file)))
    return torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).float() / 127.5 - 1
