"""Coordinates of the charts in a validation report."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TypeGuard

from vidc.compiler.report.axes import Axis, Box, Tick, around
from vidc.compiler.validate.worst import Histogram, WorstTensor

WIDTH, HEIGHT = 1000, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 34, 48
MAX_BLOCK_LABELS = 20
SWITCH_LABEL = 130
"""Width of a prompt-switch label; a closer switch gets no label."""


@dataclass(frozen=True)
class Point:
    """Figure of one block. ``value`` is None for a block that was not measured.

    ``y`` is the bad end of the chart for a value that is missing or not finite, and the good end
    for a perfect value. ``hollow`` marks a value with another kind of reference.
    """

    x: float
    y: float
    block: int
    value: float | None
    passed: bool
    drawn: bool
    """True if the axis can place the value."""
    hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """Coordinates of one chart; the origin is the upper left corner.

    ``lines`` are runs of neighboring finite points, each as the points of an SVG polyline.
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


def block_chart(
    values: Sequence[tuple[int, float | None]],
    threshold: float,
    switches: Sequence[int],
    hollow: Collection[int] = (),
) -> Chart:
    """Lays out a figure of each block, from left to right; higher is better.

    Infinity is drawn at the top.

    Args:
        values: (block, figure) in rising order of blocks, at least one.
        threshold: lower limit.
        switches: blocks that are the first of a new prompt.
        hollow: blocks whose points are drawn hollow.
    """
    shown = [threshold, *(value for _, value in values if _finite(value))]
    axis = around(min(shown), max(shown), HEIGHT - BOTTOM, TOP)
    first, last = values[0][0], values[-1][0]

    def x(block: float) -> float:
        share = (block - first + 0.5) / (last - first + 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def point(block: int, value: float | None) -> Point:
        perfect = value == math.inf
        y = TOP if perfect else axis.at(value) if _finite(value) else HEIGHT - BOTTOM
        passed = value is not None and value >= threshold
        drawn = perfect or _finite(value)
        return Point(x(block), y, block, value, passed, drawn, block in hollow)

    points = tuple(point(block, value) for block, value in values)
    step = math.ceil((last - first + 1) / MAX_BLOCK_LABELS)
    return Chart(
        points=points,
        lines=tuple(
            " ".join(f"{p.x},{p.y}" for p in run)
            for drawn, run in groupby(points, lambda p: p.drawn)
            if drawn
        ),
        x_ticks=tuple(Tick(x(b), str(b)) for b in range(first, last + 1, step)),
        y_ticks=axis.ticks(),
        threshold=Tick(axis.at(threshold), f"threshold {threshold:.3g}"),
        switches=_labeled([x(b - 0.5) for b in switches if first <= b <= last]),
    )


def _labeled(switches: Sequence[float]) -> tuple[Tick, ...]:
    """Returns ticks at these positions, with labels if they fit."""
    ticks: list[Tick] = []
    free = -math.inf
    for at in switches:
        ticks.append(Tick(at, "prompt switch" if at >= free else ""))
        free = at + SWITCH_LABEL if at >= free else free
    return tuple(ticks)


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


SPREAD_HEIGHT = 190
SPREAD_TOP, SPREAD_BOTTOM = 12, 44
VALUES, ERRORS = (56, 500), (556, 980)
"""Left and right end of each panel."""
MOST_TICKS = 8


@dataclass(frozen=True)
class Panel:
    """One or two histograms over one axis; heights are logarithms of counts.

    ``bars`` are the first one's, ``outline`` the points of an SVG polyline around the second's.
    """

    bars: tuple[Box, ...]
    outline: str
    ticks: tuple[Tick, ...]
    most: Tick
    left: float
    right: float


@dataclass(frozen=True)
class Spread:
    """Histograms of one tensor: values of reference and candidate, and errors."""

    values: Panel
    errors: Panel
    width: int = WIDTH
    height: int = SPREAD_HEIGHT
    bottom: int = SPREAD_HEIGHT - SPREAD_BOTTOM


def spread(worst: WorstTensor) -> Spread:
    """Lays out the histograms of a tensor."""
    return Spread(
        values=_panel(worst.reference, worst.candidate, *VALUES),
        errors=_panel(worst.error, None, *ERRORS),
    )


def _panel(bars: Histogram, outlined: Histogram | None, left: float, right: float) -> Panel:
    counts = [*bars.counts, *(outlined.counts if outlined else ())]
    most, bottom = max(1, *counts), SPREAD_HEIGHT - SPREAD_BOTTOM
    # A linear axis would hide single outliers beside thousands of values.
    y = Axis(0, math.log10(1 + most), bottom, SPREAD_TOP)
    x = Axis(bars.low, bars.high, left, right)
    edges = [left + (right - left) * part / len(bars.counts) for part in range(len(bars.counts))]
    edges = [round(edge, 1) for edge in (*edges, right)]
    return Panel(
        bars=tuple(
            Box.between(start, y.at(math.log10(1 + count)), end, bottom)
            for count, start, end in zip(bars.counts, edges, edges[1:], strict=False)
            if count
        ),
        outline="" if outlined is None else _outline(outlined, edges, y),
        ticks=_ticks(x),
        most=Tick(y.at(math.log10(1 + most)), f"{most:,}"),
        left=left,
        right=right,
    )


def _outline(histogram: Histogram, edges: list[float], y: Axis) -> str:
    heights = [y.at(math.log10(1 + count)) for count in histogram.counts]
    steps = zip(edges, edges[1:], heights, strict=False)
    corners = chain.from_iterable(((start, up), (end, up)) for start, end, up in steps)
    return " ".join(f"{across},{up}" for across, up in corners)


def _ticks(x: Axis) -> tuple[Tick, ...]:
    """Returns ticks with short labels for values of any size."""
    least = 10.0 ** math.floor(math.log10(max(abs(x.low), abs(x.high))))
    if 1e-3 <= least < 1e4:
        return x.ticks(MOST_TICKS)
    scaled = Axis(x.low / least, x.high / least, x.start, x.end).ticks(MOST_TICKS)
    exponent = round(math.log10(least))
    return tuple(
        Tick(tick.at, f"{tick.label}e{exponent}" if float(tick.label) else "0") for tick in scaled
    )
