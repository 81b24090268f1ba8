"""Pixels of clips, in tensor operations over whole batches, on any device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from demo_model.attributes import Shape, Size
from demo_model.clip import TRANSITION_FRAMES, Clip
from demo_model.light import gains
from demo_model.motion import tracks
from demo_model.palette import OBJECTS
from demo_model.shapes import DISTANCES, EXTENT, rotated
from demo_model.textures import grounds

SHADOW = (0.016, 0.024)
"""Where an object's shadow lies, right of it and below, as shares of the shorter side."""


def render(
    clips: Sequence[Clip],
    frames: int,
    *,
    height: int = 128,
    width: int = 128,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Frames ``first`` to ``first + frames`` of clips, float32 ``[B, 3, T, H, W]`` in -1..1.

    What is random is drawn on the CPU, so that devices differ in the last digits alone. Frame N
    is the same whichever frame a call begins with.

    Raises:
        ValueError: no clip, no frame, or a frame too small for its objects.
    """
    if not clips or frames < 1 or first < 0:
        raise ValueError(f"nothing to render: {len(clips)} clips, {frames} frames from {first}")
    if min(height, width) < 64:
        raise ValueError(f"{width}x{height} is too small: objects need 64 pixels on a side")
    device = torch.device(device)
    scenes = [clip.scenes[0][1] for clip in clips]
    seeds = [clip.seed for clip in clips]
    ground = grounds([scene.background for scene in scenes], seeds, height, width, device)
    canvas = ground[:, None].expand(-1, frames, -1, -1, -1).contiguous()
    for index in range(max(len(scene.things) for scene in scenes)):
        shown = [i for i, scene in enumerate(scenes) if len(scene.things) > index]
        layer = _layer([clips[i] for i in shown], index, first, frames, height, width)
        _paint(canvas, torch.tensor(shown), layer)
    light = gains([scene.light for scene in scenes], seeds, first, frames, width)
    canvas.mul_(light.to(device)).mul_(2).sub_(1).clamp_(-1, 1)
    return canvas.permute(0, 4, 1, 2, 3).contiguous()


Indices = npt.NDArray[np.int64]

_SHAPES = tuple(Shape)


@dataclass(frozen=True)
class _Layer:
    """One object of each of N clips over T frames, on the CPU.

    Attributes:
        x, y, angle: float32 ``[N, T]``, pixels and radians.
        radius: float32 ``[N]``, pixels.
        color: float32 ``[N, T, 3]``.
        share: float32 ``[N, T]``, of the second shape.
        shapes: of each clip and frame, ``[N][T]``, what it was and what it becomes.
    """

    x: Tensor
    y: Tensor
    angle: Tensor
    radius: Tensor
    color: Tensor
    share: Tensor
    shapes: tuple[Indices, Indices]


def _layer(
    clips: Sequence[Clip], index: int, first: int, frames: int, height: int, width: int
) -> _Layer:
    """What ``_paint`` needs to know about object ``index`` of clips that all have it."""
    paths = [tracks(clip, first, frames, height, width)[index] for clip in clips]
    before = np.zeros((len(clips), frames), np.int64)
    after = np.zeros_like(before)
    share = np.zeros((len(clips), frames), np.float32)
    color = np.zeros((len(clips), frames, 3), np.float32)
    for n, clip in enumerate(clips):
        previous = clip.scenes[0][1].things[index]
        for start, scene in clip.scenes:
            thing = scene.things[index]
            since = np.arange(first, first + frames) - start
            now = since >= 0
            done = np.clip((since[now] + 1) / TRANSITION_FRAMES, 0, 1)
            before[n, now] = _SHAPES.index(previous.shape)
            after[n, now] = _SHAPES.index(thing.shape)
            share[n, now] = done
            old, new = (np.array(OBJECTS[t.color], np.float32) for t in (previous, thing))
            color[n, now] = old + (new - old) * done[:, None]
            previous = thing
    sizes: list[Size] = [clip.scenes[0][1].things[index].size for clip in clips]
    x, y, angle = (
        torch.from_numpy(np.stack([getattr(path, name) for path in paths])).float()
        for name in ("x", "y", "angle")
    )
    radius = torch.tensor([size.radius * min(height, width) for size in sizes])
    shapes = (before, after)
    return _Layer(x, y, angle, radius, torch.from_numpy(color), torch.from_numpy(share), shapes)


def _paint(canvas: Tensor, clips: Tensor, layer: _Layer) -> None:
    """Paints a layer and its shadow into ``canvas`` ``[B, T, H, W, 3]``, around the edges too.

    Only a patch around each object is touched: a quarter of a frame.
    """
    device = canvas.device
    height, width = canvas.shape[2:4]
    unit = min(height, width)
    radius = layer.radius.to(device)[:, None, None, None]
    shift = (round(SHADOW[1] * unit), round(SHADOW[0] * unit))
    half = math.ceil(Size.BIG.radius * EXTENT * unit) + 2 * max(shift)
    steps = torch.arange(-half, half, device=device)
    left = torch.floor(layer.x).long().to(device)[..., None] + steps
    top = torch.floor(layer.y).long().to(device)[..., None] + steps
    x = (left + 0.5 - layer.x.to(device)[..., None])[:, :, None, :] / radius
    y = (top + 0.5 - layer.y.to(device)[..., None])[:, :, :, None] / radius
    x, y = torch.broadcast_tensors(x, y)
    distance = _distances(layer, *rotated(x, y, layer.angle.to(device)[..., None, None]))
    distance = distance * radius
    inside = (0.5 - distance).clamp_(0, 1)[..., None]
    behind = torch.roll(distance, shift, (2, 3))
    shadow = 0.4 * torch.sigmoid(-behind / 1.5)[..., None]
    # Darker at the rim, lighter toward the upper left: looks solid, and stays one hue.
    rim = torch.sigmoid((distance + 1.8) * 1.6)
    shade = ((1.0 - 0.07 * (x + y)) * (1 - 0.25 * rim))[..., None]
    color = layer.color.to(device)[:, :, None, None, :] * shade
    where = (
        clips.to(device)[:, None, None, None],
        torch.arange(canvas.shape[1], device=device)[None, :, None, None],
        (top % height)[:, :, :, None],
        (left % width)[:, :, None, :],
    )
    ground = canvas[where] * (1 - shadow)
    canvas[where] = torch.lerp(ground, color, inside)


def _distances(layer: _Layer, x: Tensor, y: Tensor) -> Tensor:
    """Signed distances ``[N, T, P, P]`` in radii, shape by shape; between two while one changes.

    Which frames have which shape is known on the CPU, so that a GPU is not waited for.
    """
    shape = x.shape
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    result = torch.empty_like(x)
    before, after = (shapes.reshape(-1) for shapes in layer.shapes)
    share = layer.share.reshape(-1)
    for index in np.unique(after):
        rows = torch.from_numpy(np.flatnonzero(after == index)).to(x.device)
        result[rows] = DISTANCES[_SHAPES[index]](x[rows], y[rows])
    changing = (before != after) & (share.numpy() < 1)
    for index in np.unique(before[changing]):
        found = torch.from_numpy(np.flatnonzero(changing & (before == index)))
        rows = found.to(x.device)
        old = DISTANCES[_SHAPES[index]](x[rows], y[rows])
        result[rows] = torch.lerp(old, result[rows], share[found].to(x.device)[:, None, None])
    return result.view(shape)
