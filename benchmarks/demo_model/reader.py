"""Reads objects off a video: color, shape, direction and place, by pixels.

``read`` is told ground, light and the number of objects. ``score`` also uses an object's color, to
find its pixels, and its speed, to read its direction.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d, normalize, pad

from demo_model.render import grid, light, outline, render
from demo_model.world import COLORS, DIRECTIONS, PLACES, RADII, SHAPES, Clip, apart, velocities

FOREIGN = 0.14  # Least distance in RGB (0..1) of an object's pixels from the ground, shaded or not.
LEAST_AREA = 0.4  # In squares of the smallest radius: objects cover 1.5 or more.
_Y, _X = torch.meshgrid(*[torch.linspace(-1.2, 1.2, 481)] * 2, indexing="ij")
AREAS = {s: 2.4**2 * float((outline(s, _X, _Y) < 0).float().mean()) for s in SHAPES}
"""Areas of shapes of radius 1."""


def score(video: Tensor, clip: Clip, frames: Tensor) -> list[dict[str, bool]]:
    """Attributes of each object that a video ``[3, T, H, W]`` (-1..1) shows right.

    ``frames`` are the clip's, ``[T]``; a place is read only from frame 0 on. An object is read from
    the pixels of its color, else from those of a color that no object has.
    """
    names = ["color", "shape", "direction", *(["place"] if frames[0] == 0 else [])]
    things, masks, scores = clip.shown(int(frames[0])).things, read(video, clip, frames), []
    spare = [color for color in masks if color not in {thing.color for thing in things}]
    for thing in things:
        color = thing.color if thing.color in masks else spare.pop(0) if spare else None
        shown: dict[str, str] = {}
        if color is not None:
            mask = masks[color]
            centers = torch.stack([_center(frame) for frame in mask])
            shown = {"color": color, "shape": _shape(mask, centers), "place": _place(centers[0])}
            shown["direction"] = _direction(centers, float(velocities([thing]).norm()))
        scores.append({name: shown.get(name) == getattr(thing, name) for name in names})
    return scores


def read(video: Tensor, clip: Clip, frames: Tensor) -> dict[str, Tensor]:
    """Pixels ``[T, H, W]`` of each object by its color, largest first; arguments as ``score``."""
    size = (video.shape[-2], video.shape[-1])
    (bare,), _ = render([Clip(replace(clip.scene, things=()))], frames, size)
    ground, seen = ((each + 1) / 2 for each in (bare, video))
    shade = ((seen * ground).sum(0) / ground.square().sum(0).clamp_min(1e-4)).clamp(0.5, 1.05)
    foreign = (seen - shade * ground).norm(dim=0) > FOREIGN
    own = normalize(seen / light([clip], frames[None], size)[0], dim=0)
    palette = normalize(torch.tensor([*COLORS.values()]), dim=1)
    nearest = torch.einsum("nc,cthw->nthw", palette, own).argmax(0)
    masks = {name: foreign & (nearest == i) for i, name in enumerate(COLORS)}
    least = LEAST_AREA * min(RADII.values()) ** 2 * size[0] * size[1] * len(frames)
    areas = {name: area for name, mask in masks.items() if (area := float(mask.sum())) > least}
    found = sorted(areas, key=areas.__getitem__, reverse=True)
    objects = {name: masks[name] for name in found[: len(clip.scene.things)]}
    # A line of pixels along another object is an edge of it: that of blue over wood is purple.
    near = sum(_grown(mask).int() for mask in objects.values())
    return {n: mask & (_grown(~_grown(~mask)) | (near < 2)) for n, mask in objects.items()}


def _grown(mask: Tensor) -> Tensor:
    """A mask ``[T, H, W]`` and the pixels beside it, on a torus."""
    return max_pool2d(pad(mask.float(), (1, 1, 1, 1), mode="circular"), 3, 1) > 0


def _center(mask: Tensor) -> Tensor:
    """Center (x, y) of a mask ``[H, W]`` on a torus; NaN where it is empty."""
    if not mask.any():
        return torch.full((2,), torch.nan)
    turns = []
    for weights in (mask.sum(0), mask.sum(1)):
        angles = 2 * torch.pi * (torch.arange(len(weights)) + 0.5) / len(weights)
        mean = torch.atan2((weights * angles.sin()).sum(), (weights * angles.cos()).sum())
        turns.append(mean.remainder(2 * torch.pi) / (2 * torch.pi))
    return torch.stack(turns)


def _shape(mask: Tensor, centers: Tensor) -> str:
    """The shape that fits best in three frames of ``[T, H, W]``."""
    rows = torch.linspace(0, len(mask) - 1, min(len(mask), 3)).round().long()
    return max(SHAPES, key=lambda s: sum(_overlap(mask[row], s, centers[row]) for row in rows))


def _overlap(mask: Tensor, shape: str, center: Tensor) -> float:
    """Intersection over union with a shape of the mask's area and centroid."""
    radius = max((float(mask.float().mean()) / AREAS[shape]) ** 0.5, 1e-3)
    x, y = torch.broadcast_tensors(*grid((mask.shape[0], mask.shape[1])))
    for _ in range(2):
        inside = outline(shape, apart(x, center[0]) / radius, apart(y, center[1]) / radius) < 0
        # An outline's own center is not its centroid: a triangle's lies lower.
        center = center + apart(_center(mask), _center(inside))
    return float((inside & mask).sum() / (inside | mask).sum().clamp_min(1))


def _place(center: Tensor) -> str:
    if center.isnan().any():
        return "none"
    cells = {name: torch.tensor(cell) / 3 + 1 / 6 for name, cell in PLACES.items()}
    return min(cells, key=lambda name: float(apart(center, cells[name]).norm()))


def _direction(centers: Tensor, speed: float) -> str:
    """The direction in which an object of this speed a frame moves most like the centers."""
    steps = {name: speed * torch.tensor(toward) for name, toward in DIRECTIONS.items()}
    steps["none"] = torch.zeros(2)
    moved = apart(centers[1:], centers[:-1])
    return min(steps, key=lambda name: float((moved - steps[name]).abs().nanmean()))
