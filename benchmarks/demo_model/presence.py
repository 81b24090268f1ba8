"""Where objects are, at the size of the VAE's latents."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from demo_model.clip import LATENT_STRIDE, Clip
from demo_model.motion import tracks
from demo_model.shapes import EXTENT

CELL = 8
"""Pixels on a side of what one latent value sees."""

MARGIN = 0.75 * CELL
"""From a cell's middle, so that whatever an object touches counts as its own."""


def presence(clips: Sequence[Clip], latents: int, *, height: int, width: int, first: int) -> Tensor:
    """Cells that an object is on in any frame of a latent one, bool ``[B, latents, h, w]``.

    Args:
        clips: of one length.
        latents: latent frames, of which the first is one frame and each later one four.
        height, width: of a frame in pixels; objects go around its edges.
        first: the first frame.
    """
    frames = LATENT_STRIDE * (latents - 1) + 1
    unit = min(height, width)
    rows, columns = (torch.arange(CELL / 2, side, CELL) for side in (height, width))
    shown = torch.zeros(len(clips), frames, len(rows), len(columns), dtype=torch.bool)
    for clip, found in zip(clips, shown, strict=True):
        things = clip.scenes[0][1].things
        for thing, track in zip(things, tracks(clip, first, frames, height, width), strict=True):
            reach = thing.size.radius * EXTENT * unit + MARGIN
            beside = _apart(track.x, columns, width)[:, None, :]
            above = _apart(track.y, rows, height)[:, :, None]
            found |= torch.hypot(beside, above) < reach
    later = shown[:, 1:].unflatten(1, (latents - 1, LATENT_STRIDE)).any(2)
    return torch.cat([shown[:, :1], later], 1)


def _apart(places: np.ndarray, cells: Tensor, side: int) -> Tensor:
    """Distances ``[T, cells]`` along an axis whose ends meet."""
    apart = (torch.from_numpy(places).float()[:, None] - cells).remainder(side)
    return torch.minimum(apart, side - apart)
