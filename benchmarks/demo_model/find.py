"""Objects in pixels: for each strong color, where one compact object of it is, frame by frame.

Nothing here knows a prompt. Colors are told by hue and saturation, which light, texture and shadow
leave alone. A frame has an object of a color when most of that color's pixels lie together, as
densely as a shape's do: noise and a picture full of color have none.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_model.attributes import Color
from demo_model.palette import OBJECTS

BLUR = 1.0
"""Standard deviation in pixels of what noise is smoothed with."""

SATURATION = (0.42, 0.62)
"""From none of a pixel counted to all of it; grounds are below, objects above."""

COVERED = (0.58, 0.8)
"""The same for an object's outline, as shares of its own saturation: a pixel that an object half
covers has about two thirds of it, and the hole of a ring is seen under a blur too."""

DARKEST = 0.15
"""A pixel whose strongest channel, in 0..1, is below has no color."""

AREA = (0.009, 0.16)
"""Least and largest area of an object, in squares of the shorter side."""

WINDOW = 0.26
"""Largest distance of a pixel from its object's center, as a share of the shorter side."""

PURITY = 0.7
"""Least share of a color's pixels that are its object's."""

SPREAD = 0.42
"""Largest mean square distance from the center over the area: 0.16 for a disc, 0.3 for a ring."""

PRESENT = 0.7
"""Least share of frames that must have an object for a clip to have it."""


@dataclass(frozen=True)
class Blob:
    """An object of one color in a clip of T frames.

    Attributes:
        color: its name.
        mask: float32 ``[T, H, W]``, how much of each pixel has the color, 0..1.
        center: float32 ``[T, 2]``, x and y in pixels; valid where ``seen``.
        area: float32 ``[T]``, square pixels; valid where ``seen``.
        seen: bool ``[T]``, the frames that have it.
    """

    color: Color
    mask: Tensor
    center: Tensor
    area: Tensor
    seen: Tensor


def find(clip: Tensor) -> list[Blob]:
    """Objects of a clip ``[3, T, H, W]`` in -1..1, largest first; none if none stays.

    Raises:
        ValueError: the clip has another shape, or values that are not finite.
    """
    if clip.ndim != 4 or clip.shape[0] != 3:
        raise ValueError(f"a clip is [3, T, H, W], not {list(clip.shape)}")
    if not torch.isfinite(clip).all():
        raise ValueError("the clip has values that are not finite")
    saturation, names = colors(clip)
    weight = _ramp(saturation, *SATURATION)
    unit = min(clip.shape[-2:])
    found = []
    for index, color in enumerate(OBJECTS):
        mask = weight * (names == index)
        enough = mask.sum((1, 2)) >= AREA[0] * unit**2
        if enough.float().mean() < PRESENT:
            continue
        core = saturation[mask >= mask.max() / 2]
        full = float(core[:: max(1, len(core) // 100_000)].quantile(0.75))
        mask = _ramp(saturation, *(share * full for share in COVERED)) * (mask > 0)
        blob = _blob(color, mask, enough)
        if blob.seen.float().mean() >= PRESENT:
            found.append(blob)
    return sorted(found, key=lambda blob: -float(blob.area[blob.seen].mean()))


def colors(clip: Tensor) -> tuple[Tensor, Tensor]:
    """Saturation of pixels, float32 ``[T, H, W]`` 0..1, and which of ``OBJECTS`` they are like."""
    red, green, blue = _smooth((clip.float() + 1) / 2).unbind(0)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    # What is too dark to have a color has a small one.
    saturation = (high - low) / high.clamp_min(DARKEST) * (high > DARKEST)
    hue = _hue(red, green, blue)
    limits, order = _hue_limits()
    names = order.to(hue.device)[torch.bucketize(hue, limits.to(hue.device))]
    return saturation, names


def _ramp(values: Tensor, low: float, high: float) -> Tensor:
    """0 up to ``low``, 1 from ``high`` on, and a line between them."""
    return ((values - low) / (high - low)).clamp_(0, 1)


def _smooth(clip: Tensor) -> Tensor:
    """A Gaussian blur of each frame, edges joined; sums of slices, as no convolution is as fast."""
    reach = math.ceil(2.5 * BLUR)
    taps = torch.softmax(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * BLUR**2), 0).tolist()
    for dim in (-1, -2):
        size = clip.shape[dim]
        ends = (clip.narrow(dim, size - reach, reach), clip.narrow(dim, 0, reach))
        padded = torch.cat((ends[0], clip, ends[1]), dim)
        clip = padded.narrow(dim, 0, size) * taps[0]
        for start, tap in enumerate(taps[1:], 1):
            clip.add_(padded.narrow(dim, start, size), alpha=tap)
    return clip


def _hue(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    """Angle of a color around gray, -pi..pi, red at 0."""
    return torch.atan2(math.sqrt(3) / 2 * (green - blue), red - (green + blue) / 2)


def _hue_limits() -> tuple[Tensor, Tensor]:
    """Hues halfway between neighbors, ascending, and the index of the color before each."""
    hues = _hue(*torch.tensor(list(OBJECTS.values())).unbind(1))
    order = torch.argsort(hues)
    ordered = hues[order]
    limits = (ordered[1:] + ordered[:-1]) / 2
    around = (ordered[0] + ordered[-1] + 2 * math.pi) / 2
    if around > math.pi:
        # The gap's middle lies past pi: it is the lowest limit, and below it is the last color.
        return torch.cat([around[None] - 2 * math.pi, limits]), torch.cat([order[-1:], order])
    return torch.cat([limits, around[None]]), torch.cat([order, order[:1]])


def _blob(color: Color, mask: Tensor, enough: Tensor) -> Blob:
    """The densest place of a mask in each frame, edges joined, and whether it is an object."""
    height, width = mask.shape[1:]
    unit = min(height, width)
    center = _densest(mask)
    x = torch.arange(width, device=mask.device) + 0.5
    y = torch.arange(height, device=mask.device) + 0.5
    for _ in range(3):
        dx = around(x - center[:, :1], width)
        dy = around(y - center[:, 1:], height)
        near = (dx[:, None, :] ** 2 + dy[:, :, None] ** 2) <= (WINDOW * unit) ** 2
        inside = mask * near
        columns, rows = inside.sum(1), inside.sum(2)
        area = columns.sum(1)
        sums = torch.stack([(columns * dx).sum(1), (rows * dy).sum(1)], 1)
        offset = sums / area.clamp_min(1e-6)[:, None]
        center = center + offset
    squares = (columns * dx**2).sum(1) + (rows * dy**2).sum(1)
    variance = squares / area.clamp_min(1e-6) - (offset**2).sum(1)
    seen = enough & (area >= AREA[0] * unit**2) & (area <= AREA[1] * unit**2)
    seen &= area >= PURITY * mask.sum((1, 2))
    seen &= variance <= SPREAD * area
    size = torch.tensor([width, height], device=mask.device)
    return Blob(color, inside, center % size, area, seen)


def _densest(mask: Tensor) -> Tensor:
    """Centres ``[T, 2]`` of the cells with most of a mask around them."""
    height, width = mask.shape[1:]
    cell = max(1, min(height, width) // 16)
    cells = F.avg_pool2d(mask[:, None], cell)
    cells = F.avg_pool2d(F.pad(cells, (2, 2, 2, 2), mode="circular"), 5, stride=1)[:, 0]
    best = cells.flatten(1).argmax(1)
    columns = cells.shape[2]
    place = torch.stack([best % columns, best // columns], 1)
    return (place + 0.5) * cell


def around(difference: Tensor, side: int) -> Tensor:
    """A difference of positions where edges are joined, in -side/2..side/2."""
    return (difference + side / 2) % side - side / 2
