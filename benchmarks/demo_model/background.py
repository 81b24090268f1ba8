"""How far the background of two stretches of a clip is the same, without the objects on it."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_model.find import find
from demo_model.render import SHADOW


@dataclass(frozen=True)
class BackgroundPsnr:
    """A comparison of backgrounds.

    Attributes:
        db: peak signal-to-noise ratio for a range of 2; infinite if nothing differs.
        share: of the pixels, how many were compared.
    """

    db: float
    share: float


def background_psnr(one: Tensor, other: Tensor) -> BackgroundPsnr:
    """Compares two stretches ``[3, T, H, W]`` in -1..1 of a clip, frame by frame.

    Left out is what either has an object or its shadow on, and nothing else: a picture that has
    turned into noise or color has no objects, and is compared as a whole. Take stretches a
    multiple of ``light.PERIOD`` apart, so that they should be under the same light.

    Raises:
        ValueError: shapes differ, a value is not finite, or no pixel is left.
    """
    if one.shape != other.shape:
        raise ValueError(f"stretches differ: {list(one.shape)} and {list(other.shape)}")
    compared = ~(objects(one) | objects(other))
    count = int(compared.sum())
    if count == 0:
        raise ValueError("objects cover all of the background")
    squares = ((one - other).double() ** 2).sum(0)[compared].sum()
    error = float(squares) / (3 * count)
    db = 10 * math.log10(4 / error) if error > 0 else math.inf
    return BackgroundPsnr(db, count / compared.numel())


def objects(clip: Tensor) -> Tensor:
    """Pixels of objects, their edges and shadows, bool ``[T, H, W]``."""
    height, width = clip.shape[-2:]
    covered = torch.zeros(clip.shape[1:], dtype=torch.bool, device=clip.device)
    for blob in find(clip):
        covered |= (blob.mask > 0) & blob.seen[:, None, None]
    margin = round(max(SHADOW) * min(height, width)) + 3
    around = F.pad(covered[:, None].float(), (margin,) * 4, mode="circular")
    return F.max_pool2d(around, 2 * margin + 1, stride=1)[:, 0] > 0
