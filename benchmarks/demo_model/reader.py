"""Reads objects off a video: color, shape, direction and place, by pixels.

Ground and light of the caption are taken as known; of the objects only how many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from demo_model.render import lights, render, signed_distance
from demo_model.world import (
    COLORS,
    DIRECTIONS,
    PLACES,
    RADII,
    SHAPES,
    Clip,
    Scene,
    Thing,
    positions,
)

FOREIGN = 0.14
"""Distance in RGB (0..1) from the ground, in any shadow, at which a pixel belongs to an object."""
LEAST_AREA = 0.4
"""Share of the smallest object's area below which nothing is there."""


@dataclass(frozen=True)
class Reading:
    """One object as a video shows it; words as in captions, ``centers`` as in ``positions``."""

    color: str
    shape: str
    centers: Tensor


def read(video: Tensor, clip: Clip, frames: Tensor) -> list[Reading]:
    """Objects in a video ``[3, T, H, W]`` (-1..1) of a clip's frames ``[T]``, largest first."""
    size = (video.shape[-2], video.shape[-1])
    bare, _ = render([Clip(replace(clip.scene, things=()))], frames[None], size)
    ground, seen = ((each + 1) / 2 for each in (bare[0], video))
    shade = ((seen * ground).sum(0) / ground.square().sum(0).clamp_min(1e-4)).clamp(0.5, 1.05)
    foreign = (seen - shade * ground).norm(dim=0) > FOREIGN
    light = lights([clip], frames[None], size, "cpu")[0].transpose(0, 1)
    own = torch.nn.functional.normalize(seen / light, dim=0)
    palette = torch.nn.functional.normalize(torch.tensor([*COLORS.values()]), dim=1)
    nearest = torch.einsum("nc,cthw->nthw", palette, own).argmax(0)
    masks = {name: foreign & (nearest == i) for i, name in enumerate(COLORS)}
    least = LEAST_AREA * min(RADII.values()) ** 2 * size[0] * size[1]
    areas = {name: float(mask.sum()) / len(frames) for name, mask in masks.items()}
    found = sorted((n for n in masks if areas[n] > least), key=areas.__getitem__, reverse=True)
    return [_reading(name, masks[name]) for name in found[: len(clip.scene.things)]]


def _reading(color: str, mask: Tensor) -> Reading:
    centers = torch.stack([_center(frame) for frame in mask.float()])
    scores: dict[str, float] = {}
    for index in torch.linspace(0, len(mask) - 1, min(len(mask), 3)).round().long().tolist():
        for shape in SHAPES:
            overlap = _overlap(mask[index], shape, centers[index])
            scores[shape] = scores.get(shape, 0.0) + overlap
    return Reading(color, max(scores, key=scores.__getitem__), centers)


def _center(mask: Tensor) -> Tensor:
    """Center (x, y) of a mask ``[H, W]`` on a torus; NaN where it is empty."""
    result = []
    for axis in (0, 1):
        weights = mask.sum(axis)
        angles = 2 * torch.pi * (torch.arange(len(weights)) + 0.5) / len(weights)
        x, y = (weights * angles.cos()).sum(), (weights * angles.sin()).sum()
        turn = torch.atan2(y, x).remainder(2 * torch.pi) / (2 * torch.pi)
        result.append(turn if weights.sum() > 0 else torch.tensor(torch.nan))
    return torch.stack(result)


@cache
def _area(shape: str) -> float:
    """Area of a shape of radius 1."""
    line = torch.linspace(-1.2, 1.2, 481)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return 2.4**2 * float((signed_distance([shape], x[None], y[None]) < 0).float().mean())


def _overlap(mask: Tensor, shape: str, center: Tensor) -> float:
    """Intersection over union with a shape of the mask's area and centroid."""
    radius = (float(mask.float().mean()) / _area(shape)) ** 0.5
    height, width = mask.shape
    y, x = torch.meshgrid(
        (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij"
    )
    for _ in range(2):
        across = ((x - center[0] + 0.5).remainder(1) - 0.5) / max(radius, 1e-3)
        down = ((y - center[1] + 0.5).remainder(1) - 0.5) / max(radius, 1e-3)
        inside = signed_distance([shape], across[None], down[None])[0] < 0
        # An outline's own center is not its centroid: a triangle's lies lower.
        center = center + _apart(_center(mask.float()), _center(inside.float()))
    return float((inside & mask).sum() / (inside | mask).sum().clamp_min(1))


def _apart(first: Tensor, second: Tensor) -> Tensor:
    return (first - second + 0.5).remainder(1) - 0.5


def match(readings: Sequence[Reading], things: Sequence[Thing]) -> list[Reading | None]:
    """The reading of each object: the one of its color, else one that no object claims."""
    by_color = {reading.color: reading for reading in readings}
    spare = [r for r in readings if r.color not in {thing.color for thing in things}]
    return [by_color.get(t.color) or (spare.pop(0) if spare else None) for t in things]


def score(video: Tensor, clip: Clip, frames: Tensor) -> list[dict[str, bool]]:
    """Attributes of each object that the video shows right; a place only from frame 0 on."""
    names = ["color", "shape", "direction", *(["place"] if frames[0] == 0 else [])]
    things, scores = clip.shown(int(frames[0])).things, []
    for index, reading in enumerate(match(read(video, clip, frames), things)):
        shown: dict[str, str] = {}
        if reading is not None:
            shown = {"color": reading.color, "shape": reading.shape}
            shown["direction"] = _direction(reading, clip, index, frames)
            shown["place"] = _place(reading.centers[0])
        scores.append({name: shown.get(name) == getattr(things[index], name) for name in names})
    return scores


def _place(center: Tensor) -> str:
    if center.isnan().any():
        return "none"
    distances = {
        name: float(_apart(center, torch.tensor(cell) / 3 + 1 / 6).norm())
        for name, cell in PLACES.items()
    }
    return min(distances, key=distances.__getitem__)


def _direction(reading: Reading, clip: Clip, index: int, frames: Tensor) -> str:
    """The direction whose motion comes nearest; the caption's own where two are one motion."""
    moved = _apart(reading.centers[1:], reading.centers[:-1])
    scene = clip.shown(int(frames[0]))
    thing, distances = scene.things[index], {"none": float(moved.abs().nanmean())}
    for direction in (thing.direction, *(d for d in DIRECTIONS if d != thing.direction)):
        turned = Scene((replace(thing, direction=direction),))
        before = turned if scene is clip.scene else Scene((clip.scene.things[index],))
        path = positions(Clip(before, turned, clip.at), frames)[0]
        distances[direction] = float((moved - _apart(path[1:], path[:-1])).abs().nanmean())
    best = min(distances, key=distances.__getitem__)
    # Half a pixel in a hundred frames: from an edge, bouncing to either side is one motion.
    own = thing.direction
    return own if distances[own] <= distances[best] + 3e-5 else best
