"""Shapes as signed distances: below zero inside, in units of an object's radius."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from demo_model.attributes import Shape

EXTENT = 1.3
"""No shape reaches further from its center, at any rotation."""

Distance = Callable[[Tensor, Tensor], Tensor]


def _circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 1.0


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.84).abs() - 0.28


def _box(x: Tensor, y: Tensor, half_width: float, half_height: float) -> Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _square(x: Tensor, y: Tensor) -> Tensor:
    return _box(x, y, 0.88, 0.88)


def _cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(_box(x, y, 1.12, 0.38), _box(x, y, 0.38, 1.12))


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    """Equilateral, a corner up: an edge is half as far from the center as a corner."""
    slanted = x.abs() * math.cos(math.pi / 6) - y * 0.5
    return torch.maximum(slanted, y) - EXTENT / 2


def _star(x: Tensor, y: Tensor) -> Tensor:
    """Five points, one up: folded into the half of one point, where the outline is a line."""
    fifth = 2 * math.pi / 5
    angle = torch.atan2(x, -y)
    folded = (angle - fifth * torch.round(angle / fifth)).abs()
    radius = torch.hypot(x, y)
    inner = 0.6
    notch = (inner * math.cos(fifth / 2), inner * math.sin(fifth / 2))
    edge = (EXTENT - notch[0], -notch[1])
    length = math.hypot(*edge)
    along, across = radius * torch.cos(folded) - EXTENT, radius * torch.sin(folded)
    return (across * edge[0] - along * edge[1]) / length


DISTANCES: Mapping[Shape, Distance] = MappingProxyType(
    {
        Shape.CIRCLE: _circle,
        Shape.SQUARE: _square,
        Shape.TRIANGLE: _triangle,
        Shape.STAR: _star,
        Shape.CROSS: _cross,
        Shape.RING: _ring,
    }
)
"""Of points ``x``, ``y`` (any shape, y downwards) from the outline, exact beside straight edges."""


SYMMETRY: Mapping[Shape, float] = MappingProxyType(
    {
        Shape.SQUARE: math.pi / 2,
        Shape.TRIANGLE: 2 * math.pi / 3,
        Shape.STAR: 2 * math.pi / 5,
        Shape.CROSS: math.pi / 2,
    }
)
"""Radians after which a shape that can spin looks as it did."""


def rotated(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Points in the frame of an object that is turned clockwise by ``angle`` radians."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return x * cos + y * sin, y * cos - x * sin
