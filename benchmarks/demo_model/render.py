"""The reference video of any caption in any frames: anti-aliased signed distance functions."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from demo_model.world import BLOCK, COLORS, RADII, Clip, apart, positions

_SHADOW, _SHADE = (0.035, 0.045), 0.4
"""Offset of an object's shadow, and the share of light that it takes."""
_PULSE, _SWEEP = 4 * BLOCK, 8 * BLOCK
"""Periods of lights, in frames."""
Size = tuple[int, int]
"""Height and width in pixels."""
Drawing = Callable[[Tensor, Tensor], Tensor]
"""A function of x and y: distances to an outline, or the colors of a ground ``[3, H, W]``."""


def render(
    clip: Clip, frames: Tensor, size: Size, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draws frames int64 ``[T]`` (on the CPU) of a clip.

    Returns the video, float32 ``[3, T, H, W]`` in -1..1, and the share of each pixel that objects
    cover, ``[T, H, W]``.
    """
    image = _ground(clip.scene.ground, size, str(device)).repeat(len(frames), 1, 1, 1)
    shown = torch.zeros(len(frames), *size, device=device)
    for index in reversed(range(len(clip.scene.things))):
        image, covered = _with_thing(image, clip, frames, index)
        shown = torch.maximum(shown, covered)
    lit = (image * light(clip, frames, size, device)).clamp(0, 1)
    return (2 * lit - 1).transpose(0, 1).contiguous(), shown


@cache
def grid(size: Size, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Centers of pixels: x ``[1, W]`` and y ``[H, 1]``."""
    y, x = ((torch.arange(length, device=device) + 0.5) / length for length in size)
    return x[None, :], y[:, None]


def _with_thing(image: Tensor, clip: Clip, frames: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Draws one object over ``[T, 3, H, W]``; also returns its coverage ``[T, H, W]``."""
    device, size = image.device, (image.shape[-2], image.shape[-1])
    thing = clip.scene.things[index]
    names = [clip.shown(frame).things[index].color for frame in frames.tolist()]
    color = torch.tensor([COLORS[name] for name in names], device=device)[..., None, None]
    centers = positions(clip, index, frames).float().to(device)
    radius, outline = torch.tensor(RADII[thing.size]), OUTLINES[thing.shape]
    x, y = _offsets(centers, size, radius)
    distance = outline(x, y)
    covered = (0.5 - distance / (1 / (radius * min(size)))).clamp(0, 1)
    shadow = outline(*_offsets(centers + centers.new_tensor(_SHADOW), size, radius))
    image = image * (1 - _SHADE * torch.sigmoid(-14 * shadow))[:, None]
    # A darker rim and a light from the upper left; hue stays that of the palette.
    tone = 0.72 + 0.28 * (-distance / 0.3).clamp(0, 1) - 0.1 * (x + y).clamp(-1, 1)
    return torch.lerp(image, color * tone[:, None], covered[:, None]), covered


def _offsets(centers: Tensor, size: Size, radius: Tensor) -> Tensor:
    """Offsets of all pixels from centers ``[T, 2]`` in radii, x and y: ``[2, T, H, W]``.

    Opposite edges meet, so an object that leaves at one of them enters at the other.
    """
    pairs = zip(grid(size, centers.device), centers[..., None, None].unbind(1), strict=True)
    offsets = [apart(pixels, center) / radius for pixels, center in pairs]
    return torch.stack(torch.broadcast_tensors(*offsets))


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    slope, y = math.sqrt(3) / 2, y - 0.1
    return torch.maximum(slope * x.abs() - 0.5 * y, y) - 0.55


def _star(x: Tensor, y: Tensor) -> Tensor:
    sector = math.pi / 5
    angle = torch.atan2(x, -y).remainder(2 * sector)
    angle = torch.minimum(angle, 2 * sector - angle)
    radius = torch.hypot(x, y)
    # The edge from the tip, at angle 0 and radius 1.1, to the notch, at ``sector`` and 0.48.
    tip, notch = (0.0, 1.1), (0.48 * math.sin(sector), 0.48 * math.cos(sector))
    edge = (notch[0] - tip[0], notch[1] - tip[1])
    length = math.hypot(*edge)
    along, up = radius * torch.sin(angle) - tip[0], radius * torch.cos(angle) - tip[1]
    return (up * edge[0] - along * edge[1]) / length


def _cross(x: Tensor, y: Tensor) -> Tensor:
    longer, shorter = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    return torch.maximum(longer - 1.0, shorter - 0.33)


OUTLINES: dict[str, Drawing] = {
    "circle": lambda x, y: torch.hypot(x, y) - 0.95,
    "square": lambda x, y: torch.maximum(x.abs(), y.abs()) - 0.84,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": lambda x, y: (torch.hypot(x, y) - 0.72).abs() - 0.27,
}


def light(clip: Clip, frames: Tensor, size: Size, device: torch.device | str = "cpu") -> Tensor:
    """Factors of every pixel's light, for ``[T, 3, H, W]``; time goes on at a prompt switch."""
    time = frames.to(device).float()[:, None, None, None]
    match clip.scene.light:
        case "at dusk":
            return torch.tensor([0.55, 0.58, 0.80], device=device).view(1, 3, 1, 1)
        case "in pulsing light":
            return 1 + 0.3 * torch.sin(2 * math.pi * time / _PULSE)
        case "in sweeping light":
            x, y = grid(size, device)
            beam = (x - y / 4 - time / _SWEEP).remainder(1) - 0.5
            return 0.72 + 0.5 * torch.exp(-((beam / 0.16) ** 2))
    return torch.ones(1, 1, 1, 1, device=device)


@cache
def _ground(name: str, size: Size, device: str) -> Tensor:
    """A ground, float32 ``[3, H, W]`` in 0..1."""
    return _TEXTURES[name](*torch.broadcast_tensors(*grid(size))).clamp(0, 1).to(device)


def _waves(x: Tensor, y: Tensor, frequency: float, seed: int, stretch: float = 1.0) -> Tensor:
    """Smooth noise of unit variance: twelve plane waves around one frequency."""
    total = torch.zeros_like(x)
    for index in range(12):
        # Golden angles and ratios spread directions, frequencies and phases evenly.
        turn = 2.39996 * (index + 7 * seed)
        pace = 2 * math.pi * frequency * (0.7 + 0.6 * ((0.618 * (index + seed)) % 1))
        phase = 5.7 * index * (seed + 1)
        along = x * math.cos(turn) + y * math.sin(turn) / stretch
        total = total + torch.cos(pace * along + phase)
    return total / math.sqrt(6)


def _tinted(color: tuple[float, float, float], tone: Tensor) -> Tensor:
    return torch.tensor(color).view(3, 1, 1) * tone


def _grass(x: Tensor, y: Tensor) -> Tensor:
    tone = 1 + 0.16 * _waves(x, y, 5, 1) + 0.20 * _waves(x, y, 15, 2, stretch=3)
    return _tinted((0.27, 0.42, 0.16), tone)


def _sand(x: Tensor, y: Tensor) -> Tensor:
    ripples = torch.sin(2 * math.pi * (9 * y + 0.5 * _waves(x, y, 2, 3)))
    return _tinted((0.74, 0.63, 0.44), 0.96 + 0.08 * ripples + 0.04 * _waves(x, y, 12, 4))


def _inside(x: Tensor) -> Tensor:
    """Distances to the nearest whole number."""
    return 0.5 - (x.remainder(1) - 0.5).abs()


def _brick(x: Tensor, y: Tensor) -> Tensor:
    row = (8 * y).floor()
    column = 4 * x + 0.5 * row.remainder(2)
    inside = torch.minimum(_inside(8 * y) / 8, _inside(column) / 4)
    mortar = torch.sigmoid((0.010 - inside) * 500)
    own = (torch.sin(12.9 * row + 78.2 * column.floor().remainder(4)) * 43.7).remainder(1)
    face = _tinted((0.55, 0.31, 0.25), 0.85 + 0.3 * own + 0.05 * _waves(x, y, 14, 5))
    return torch.lerp(face, _tinted((0.66, 0.63, 0.60), torch.ones_like(x)), mortar)


def _wood(x: Tensor, y: Tensor) -> Tensor:
    plank = (5 * y).floor()
    gap = torch.sigmoid((0.007 - _inside(5 * y) / 5) * 500)
    grain = torch.sin(2 * math.pi * (16 * y + 0.8 * _waves(x + 0.37 * plank, y, 1.5, 6)))
    own = (0.618 * plank).remainder(1)
    return _tinted((0.50, 0.34, 0.20), (0.88 + 0.24 * own + 0.09 * grain) * (1 - 0.5 * gap))


def _cloth(x: Tensor, y: Tensor) -> Tensor:
    checks = torch.sin(2 * math.pi * 6 * x) + torch.sin(2 * math.pi * 6 * y)
    threads = torch.sin(2 * math.pi * 20 * x) * torch.sin(2 * math.pi * 20 * y)
    return _tinted((0.46, 0.43, 0.56), 1 + 0.11 * checks + 0.07 * threads)


_TEXTURES: dict[str, Drawing] = {
    "": lambda x, y: _tinted((0.52, 0.53, 0.55), 1.05 - 0.5 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)),
    "grass": _grass, "sand": _sand, "brick": _brick, "wood": _wood, "cloth": _cloth,
}  # fmt: skip
