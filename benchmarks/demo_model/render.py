"""The reference video of any caption in any frames: anti-aliased signed distance functions."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from demo_model.world import BLOCK, COLORS, GROUNDS, LIGHTS, RADII, Clip, apart, positions

SHADOW, SHADE = (0.035, 0.045), 0.4  # Offset of an object's shadow, and the light that it takes.
CYCLE = 2 * BLOCK  # Period of lights, in frames.
Size = tuple[int, int]  # Height and width in pixels.


def render(
    clips: Sequence[Clip], frames: Tensor, size: Size, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draws N clips: ``frames``, int64 on the CPU, are ``[T]`` for all of them, or ``[N, T]``.

    Returns videos, float32 ``[N, 3, T, H, W]`` in -1..1, and the share of each pixel that objects
    cover, ``[N, T, H, W]``. A GPU launches as many kernels for a hundred clips as for ten.
    """
    frames = frames.expand(len(clips), -1)
    grounds = [_ground(clip.scene.ground, size, str(device)) for clip in clips]
    image = torch.stack(grounds)[:, :, None].repeat(1, 1, frames.shape[1], 1, 1)
    shown = torch.zeros(*frames.shape, *size, device=device)
    for index in reversed(range(max(len(clip.scene.things) for clip in clips))):
        order = [row for row, clip in enumerate(clips) if index < len(clip.scene.things)]
        order.sort(key=lambda row: clips[row].scene.things[index].shape)  # To slice by shape.
        own, rows = [clips[row] for row in order], torch.tensor(order).to(device, non_blocking=True)
        values = _values(own, index, frames[order]).to(device, non_blocking=True)[..., None, None]
        right, down, radius, *color = values.unbind(2)  # Each [N, T, 1, 1].
        # In radii, from the object's center and from its shadow's: [2, N, T, 1, W], [.., H, 1].
        x, y = grid(size, device)
        x = apart(x, torch.stack([right, right + SHADOW[0]])) / radius
        y = apart(y, torch.stack([down, down + SHADOW[1]])) / radius
        shapes = Counter(clip.scene.things[index].shape for clip in own)
        counts = [*shapes.values()]
        parts = zip(shapes, x.split(counts, 1), y.split(counts, 1), strict=True)
        distance, below = torch.cat([outline(*part) for part in parts], 1)
        covered = (0.5 - distance / (1 / (radius * min(size)))).clamp(0, 1)
        # A darker rim and a light from the upper left; hue stays that of the palette.
        tone = 0.72 + 0.28 * (-distance / 0.3).clamp(0, 1) - 0.1 * (x[0] + y[0]).clamp(-1, 1)
        under = image[rows] * (1 - SHADE * torch.sigmoid(-14 * below))[:, None]
        image[rows] = under.lerp_(torch.stack(color, 1) * tone[:, None], covered[:, None])
        shown[rows] = torch.maximum(shown[rows], covered)
    image *= light(clips, frames.to(device, non_blocking=True), size)
    return image.clamp_(0, 1).mul_(2).sub_(1), shown


def _values(clips: Sequence[Clip], index: int, frames: Tensor) -> Tensor:
    """Center (x, y), radius and color of an object of each clip in ``[N, T]``: ``[N, T, 6]``."""
    pairs = [(clip.scene.things[index], clip.shown(clip.at).things[index]) for clip in clips]
    looks = torch.tensor([[(RADII[t.size], *COLORS[t.color]) for t in pair] for pair in pairs])
    later = frames >= torch.tensor([clip.at for clip in clips])[:, None]
    looks = torch.where(later[..., None], looks[:, 1:], looks[:, :1])
    return torch.cat([positions(clips, index, frames).float(), looks], 2)


@cache
def grid(size: Size, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Centers of pixels: x ``[1, W]`` and y ``[H, 1]``."""
    y, x = ((torch.arange(length, device=device) + 0.5) / length for length in size)
    return x[None, :], y[:, None]


def outline(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distances to the outline of a shape of radius 1 around 0, negative inside."""
    match shape:
        case "circle":
            return torch.hypot(x, y) - 0.95
        case "square":
            return torch.maximum(x.abs(), y.abs()) - 0.84
        case "triangle":
            return torch.maximum(math.sqrt(3) / 2 * x.abs() - 0.5 * (y - 0.1), y - 0.1) - 0.55
        case "cross":
            longer, shorter = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
            return torch.maximum(longer - 1.0, shorter - 0.33)
        case "ring":
            return (torch.hypot(x, y) - 0.72).abs() - 0.27
    # A star: the edge from a tip, at angle 0 and radius 1.1, to a notch, at ``sector`` and 0.48.
    sector = math.pi / 5
    across, down = 0.48 * math.sin(sector), 0.48 * math.cos(sector) - 1.1
    angle = torch.atan2(x, -y).remainder(2 * sector)
    angle, radius = torch.minimum(angle, 2 * sector - angle), torch.hypot(x, y)
    along, up = radius * torch.sin(angle), radius * torch.cos(angle) - 1.1
    return (up * across - along * down) / math.hypot(across, down)


def light(clips: Sequence[Clip], frames: Tensor, size: Size) -> Tensor:
    """Light of frames ``[N, T]``: factors ``[N, 3, T, H, W]``; time goes on at a prompt switch."""
    lights = torch.tensor([LIGHTS[clip.scene.light] for clip in clips])[..., None, None, None]
    even, pulse, sweep = lights.to(frames.device, non_blocking=True).tensor_split((3, 4), 1)
    (x, y), turn = grid(size, frames.device), frames[:, None, :, None, None] / CYCLE
    beam = torch.exp(-(((x - y / 4 - turn).remainder(1) - 0.5) / 0.16).square())
    return even + pulse * torch.sin(math.tau * turn) + sweep * beam


def _waves(x: Tensor, y: Tensor, frequency: float, seed: int, stretch: float = 1.0) -> Tensor:
    """Smooth noise of unit variance: twelve plane waves around one frequency."""
    total = torch.zeros_like(x)
    for index in range(12):
        # Golden angles and ratios spread directions, frequencies and phases evenly.
        turn = 2.39996 * (index + 7 * seed)
        pace = math.tau * frequency * (0.7 + 0.6 * ((0.618 * (index + seed)) % 1))
        phase = 5.7 * index * (seed + 1)
        along = x * math.cos(turn) + y * math.sin(turn) / stretch
        total = total + torch.cos(pace * along + phase)
    return total / math.sqrt(6)


@cache
def _ground(name: str, size: Size, device: str) -> Tensor:
    """A ground, float32 ``[3, H, W]`` in 0..1: its color times the tone of each pixel."""
    x, y = torch.broadcast_tensors(*grid(size))
    mortar = torch.zeros(1)
    match name:
        case "grass":
            tone = 1 + 0.16 * _waves(x, y, 5, 1) + 0.20 * _waves(x, y, 15, 2, stretch=3)
        case "sand":
            ripples = torch.sin(math.tau * (9 * y + 0.5 * _waves(x, y, 2, 3)))
            tone = 0.96 + 0.08 * ripples + 0.04 * _waves(x, y, 12, 4)
        case "brick":
            row = (8 * y).floor()
            column = 4 * x + 0.5 * row.remainder(2)
            inside = torch.minimum(_inside(8 * y) / 8, _inside(column) / 4)
            mortar = torch.sigmoid((0.010 - inside) * 500)
            own = (torch.sin(12.9 * row + 78.2 * column.floor().remainder(4)) * 43.7).remainder(1)
            tone = 0.85 + 0.3 * own + 0.05 * _waves(x, y, 14, 5)
        case "wood":
            plank = (5 * y).floor()
            gap = torch.sigmoid((0.007 - _inside(5 * y) / 5) * 500)
            grain = torch.sin(math.tau * (16 * y + 0.8 * _waves(x + 0.37 * plank, y, 1.5, 6)))
            tone = 0.88 + 0.24 * (0.618 * plank).remainder(1) + 0.09 * grain
            tone = tone * (1 - 0.5 * gap)
        case "cloth":
            checks = torch.sin(math.tau * 6 * x) + torch.sin(math.tau * 6 * y)
            threads = torch.sin(math.tau * 20 * x) * torch.sin(math.tau * 20 * y)
            tone = 1 + 0.11 * checks + 0.07 * threads
        case _:
            tone = 1.05 - 0.5 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)
    color, gray = (torch.tensor(each).view(3, 1, 1) for each in (GROUNDS[name], (0.66, 0.63, 0.60)))
    return torch.lerp(color * tone, gray, mortar).clamp(0, 1).to(device)


def _inside(x: Tensor) -> Tensor:
    """Distances to the nearest whole number."""
    return 0.5 - (x.remainder(1) - 0.5).abs()
