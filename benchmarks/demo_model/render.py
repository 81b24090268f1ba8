"""The reference video of any caption in any frames: anti-aliased signed distance functions."""

import math
from functools import cache

import torch
from torch import Tensor

from demo_model.world import BLOCK, COLORS, RADII, Clip, apart, positions

SHADOW, SHADE = (0.035, 0.045), 0.4  # Offset of an object's shadow, and the light that it takes.
PULSE, SWEEP = 4 * BLOCK, 8 * BLOCK  # Periods of lights, in frames.
TINTS = {
    "": (0.52, 0.53, 0.55), "grass": (0.27, 0.42, 0.16), "sand": (0.74, 0.63, 0.44),
    "brick": (0.55, 0.31, 0.25), "wood": (0.50, 0.34, 0.20), "cloth": (0.46, 0.43, 0.56),
}  # fmt: skip
"""Colors of grounds, in RGB (0..1)."""
Size = tuple[int, int]  # Height and width in pixels.


def render(
    clip: Clip, frames: Tensor, size: Size, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draws frames int64 ``[T]`` (on the CPU) of a clip.

    Returns the video, float32 ``[3, T, H, W]`` in -1..1, and the share of each pixel that objects
    cover, ``[T, H, W]``.
    """
    image = _ground(clip.scene.ground, size, str(device)).repeat(len(frames), 1, 1, 1)
    shown = torch.zeros(len(frames), *size, device=device)
    for index, thing in reversed([*enumerate(clip.scene.things)]):
        names = [clip.shown(frame).things[index].color for frame in frames.tolist()]
        color = torch.tensor([COLORS[name] for name in names], device=device)[..., None, None]
        centers = positions(clip, index, frames).float().to(device)
        radius = torch.tensor(RADII[thing.size])
        x, y = _offsets(centers, size, radius)
        distance = outline(thing.shape, x, y)
        covered = (0.5 - distance / (1 / (radius * min(size)))).clamp(0, 1)
        below = _offsets(centers + centers.new_tensor(SHADOW), size, radius)
        shadow = torch.sigmoid(-14 * outline(thing.shape, *below))
        image = image * (1 - SHADE * shadow)[:, None]
        # A darker rim and a light from the upper left; hue stays that of the palette.
        tone = 0.72 + 0.28 * (-distance / 0.3).clamp(0, 1) - 0.1 * (x + y).clamp(-1, 1)
        image = torch.lerp(image, color * tone[:, None], covered[:, None])
        shown = torch.maximum(shown, covered)
    lit = (image * light(clip, frames, size, device)).clamp(0, 1)
    return (2 * lit - 1).transpose(0, 1).contiguous(), shown


@cache
def grid(size: Size, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Centers of pixels: x ``[1, W]`` and y ``[H, 1]``."""
    y, x = ((torch.arange(length, device=device) + 0.5) / length for length in size)
    return x[None, :], y[:, None]


def _offsets(centers: Tensor, size: Size, radius: Tensor) -> Tensor:
    """Offsets of all pixels from centers ``[T, 2]`` in radii, x and y: ``[2, T, H, W]``.

    Opposite edges meet, so an object that leaves at one of them enters at the other.
    """
    (x, y), (right, down) = grid(size, centers.device), centers[..., None, None].unbind(1)
    return torch.stack(torch.broadcast_tensors(apart(x, right), apart(y, down))) / radius


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


def light(clip: Clip, frames: Tensor, size: Size, device: torch.device | str = "cpu") -> Tensor:
    """Factors of every pixel's light, for ``[T, 3, H, W]``; time goes on at a prompt switch."""
    time = frames.to(device).float()[:, None, None, None]
    match clip.scene.light:
        case "at dusk":
            return torch.tensor([0.55, 0.58, 0.80], device=device).view(1, 3, 1, 1)
        case "in pulsing light":
            return 1 + 0.3 * torch.sin(math.tau * time / PULSE)
        case "in sweeping light":
            x, y = grid(size, device)
            beam = (x - y / 4 - time / SWEEP).remainder(1) - 0.5
            return 0.72 + 0.5 * torch.exp(-((beam / 0.16) ** 2))
    return torch.ones(1, 1, 1, 1, device=device)


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
    color, gray = (torch.tensor(each).view(3, 1, 1) for each in (TINTS[name], (0.66, 0.63, 0.60)))
    return torch.lerp(color * tone, gray, mortar).clamp(0, 1).to(device)


def _inside(x: Tensor) -> Tensor:
    """Distances to the nearest whole number."""
    return 0.5 - (x.remainder(1) - 0.5).abs()
