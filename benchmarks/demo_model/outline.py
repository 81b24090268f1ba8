"""The shape of an object: which outline, at which rotation, covers its mask best."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_model.attributes import Shape
from demo_model.find import Blob
from demo_model.shapes import DISTANCES, rotated

GRID = 40
"""Samples across a template."""

REACH = 1.75
"""Half of a template's side, in radii of the disc of the same area."""

FRAMES = 12
"""Of a clip that are looked at, evenly spaced."""

OVERLAP = 0.84
"""Least Dice coefficient, over the frames, of something that has a shape at all."""


def outline(blob: Blob) -> Shape | None:
    """The shape that covers an object best over its frames, or none if none does well."""
    scores = overlaps(blob)
    best = int(scores.argmax())
    return list(DISTANCES)[best] if scores[best] >= OVERLAP else None


def overlaps(blob: Blob) -> Tensor:
    """Dice coefficients of an object and each of ``Shape``, float32, means over frames."""
    frames = torch.nonzero(blob.seen)[:, 0]
    chosen = frames[torch.linspace(0, len(frames) - 1, min(FRAMES, len(frames))).round().long()]
    crops = _crops(blob, chosen)
    templates, shapes = _templates()
    templates, shapes = templates.to(crops.device), shapes.to(crops.device)
    common = crops @ templates.T
    dice = 2 * common / ((crops**2).sum(1)[:, None] + (templates**2).sum(1)[None, :])
    best = [dice[:, shapes == index].amax(1) for index in range(len(DISTANCES))]
    return torch.stack(best, 1).mean(0)


def _crops(blob: Blob, frames: Tensor) -> Tensor:
    """Masks around their centres, scaled to the same area, ``[frames, GRID * GRID]``."""
    masks = blob.mask[frames]
    height, width = masks.shape[1:]
    side = torch.tensor([width, height], device=masks.device)
    # An object may lie around an edge: roll it to the middle first.
    whole = torch.floor(blob.center[frames]).long()
    rows = (torch.arange(height, device=masks.device) + whole[:, 1:] - height // 2) % height
    columns = (torch.arange(width, device=masks.device) + whole[:, :1] - width // 2) % width
    batch = torch.arange(len(frames), device=masks.device)[:, None, None]
    middle = masks[batch, rows[:, :, None], columns[:, None, :]]
    center = side // 2 + (blob.center[frames] - whole)
    radius = (blob.area[frames] / math.pi).sqrt()
    points = _grid().to(masks.device) * radius[:, None, None, None] + center[:, None, None, :]
    sampled = F.grid_sample(middle[:, None], points / side * 2 - 1, align_corners=False)
    return sampled.flatten(1)


def _grid() -> Tensor:
    """Points ``[GRID, GRID, 2]`` of a template."""
    steps = (torch.arange(GRID) + 0.5) / GRID * 2 * REACH - REACH
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], -1)


@functools.cache
def _templates() -> tuple[Tensor, Tensor]:
    """Every shape every 4 degrees, area pi, ``[K, GRID * GRID]``, and the index of its shape."""
    x, y = _grid().unbind(-1)
    steps = torch.arange(-1.5, 1.5, 0.005)
    fine_y, fine_x = torch.meshgrid(steps, steps, indexing="ij")
    drawn, shapes = [], []
    for index, distance in enumerate(DISTANCES.values()):
        area = float((distance(fine_x, fine_y) < 0).sum()) * 0.005**2
        radius = math.sqrt(area / math.pi)
        for degrees in range(0, 360, 4):
            turned = rotated(x * radius, y * radius, torch.tensor(math.radians(degrees)))
            # A mask's edge is about two pixels wide, of an object of about ten.
            drawn.append((0.5 - distance(*turned) / radius / 0.18).clamp(0, 1).flatten())
            shapes.append(index)
    return torch.stack(drawn), torch.tensor(shapes)
