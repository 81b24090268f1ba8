"""The rollout's curve as coordinates: error by block on a logarithmic axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeGuard

from vidc.compiler.page.axes import Tick

WIDTH, HEIGHT = 1000, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 34, 48
MAX_BLOCK_LABELS = 20
SWITCH_LABEL = 130
"""Room that the label of a prompt switch takes; a switch that is nearer to the last has none."""


@dataclass(frozen=True)
class Point:
    """One block's figure. ``value`` None marks a block that was not measured.

    ``y`` of a value that is missing or not finite is the top of the drawing, that of an exact zero
    the bottom.
    """

    x: float
    y: float
    block: int
    value: float | None
    passed: bool

    @property
    def drawn(self) -> bool:
        """Whether the value is finite, so that the point lies where it says."""
        return _finite(self.value)


@dataclass(frozen=True)
class Chart:
    """Everything the drawing needs; the origin is its upper left corner.

    ``lines`` are runs of neighbouring finite points, each as the points of an SVG polyline.
    """

    points: tuple[Point, ...]
    lines: tuple[str, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    threshold: Tick
    switches: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def rollout_chart(
    values: Sequence[tuple[int, float | None]], threshold: float, switches: Sequence[int]
) -> Chart:
    """Lays out ``values``: (block, relative L2) in rising order of blocks, at least one.

    ``switches`` are the blocks that are the first of a new prompt.
    """
    shown = [threshold, *(value for _, value in values if _drawable(value))]
    low = math.floor(math.log10(min(shown)))
    high = math.ceil(math.log10(max(shown)) + 1e-9)
    high = max(high, low + 1)
    first, last = values[0][0], values[-1][0]

    def x(block: float) -> float:
        share = (block - first + 0.5) / (last - first + 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float | None) -> float:
        if not _finite(value):
            return TOP
        exponent = math.log10(value) if value > 0 else low
        share = (high - exponent) / (high - low)
        return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)

    points = tuple(
        Point(x(block), y(value), block, value, value is not None and value <= threshold)
        for block, value in values
    )
    label_step = math.ceil((last - first + 1) / MAX_BLOCK_LABELS)
    decade_step = math.ceil((high - low) / 8)
    return Chart(
        points=points,
        lines=tuple(
            " ".join(f"{p.x},{p.y}" for p in run)
            for drawn, run in groupby(points, lambda p: p.drawn)
            if drawn
        ),
        x_ticks=tuple(Tick(x(b), str(b)) for b in range(first, last + 1, label_step)),
        y_ticks=tuple(Tick(y(10.0**e), f"1e{e}") for e in range(low, high + 1, decade_step)),
        threshold=Tick(y(threshold), f"threshold {threshold:.3g}"),
        switches=_labelled([x(b - 0.5) for b in switches if first <= b <= last]),
    )


def _labelled(switches: Sequence[float]) -> tuple[Tick, ...]:
    """Lines at these places, and a label at each that has room for it."""
    ticks: list[Tick] = []
    free = -math.inf
    for at in switches:
        ticks.append(Tick(at, "prompt switch" if at >= free else ""))
        free = at + SWITCH_LABEL if at >= free else free
    return tuple(ticks)


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _drawable(value: float | None) -> TypeGuard[float]:
    """Whether a logarithmic axis has a place for the value."""
    return _finite(value) and value > 0
