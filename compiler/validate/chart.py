"""The rollout's curves as coordinates: error on a logarithmic axis, likeness on a linear one."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeGuard

from vidc.compiler.report.axes import Tick, around

WIDTH, HEIGHT = 1000, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 34, 48
MAX_BLOCK_LABELS = 20
SWITCH_LABEL = 130
"""Room that the label of a prompt switch takes; a switch that is nearer to the last has none."""


@dataclass(frozen=True)
class Point:
    """One block's figure. ``value`` None marks a block that was not measured.

    ``y`` of a value that is missing or not finite is the bad end of the drawing, that of a perfect
    one the other. ``hollow`` marks a value that is measured in another way than the others.
    """

    x: float
    y: float
    block: int
    value: float | None
    passed: bool
    drawn: bool
    """Whether the value has a place, so that the point lies where it says."""
    hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """Everything the drawing needs; the origin is its upper left corner.

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

    def y(value: float | None) -> float:
        if not _finite(value):
            return TOP
        exponent = math.log10(value) if value > 0 else low
        share = (high - exponent) / (high - low)
        return round(TOP + share * (HEIGHT - TOP - BOTTOM), 1)

    step = math.ceil((high - low) / 8)
    return _lay_out(
        [(block, value, _finite(value)) for block, value in values],
        y,
        lambda value: value <= threshold,
        tuple(Tick(y(10.0**e), f"1e{e}") for e in range(low, high + 1, step)),
        Tick(y(threshold), f"threshold {threshold:.3g}"),
        switches,
    )


def likeness_chart(
    values: Sequence[tuple[int, float | None]],
    threshold: float,
    switches: Sequence[int],
    hollow: Collection[int] = (),
) -> Chart:
    """Lays out figures of which large ones are good, such as PSNR and SSIM, as ``rollout_chart``.

    Infinity is perfect and lies at the top.

    Args:
        values: (block, figure) in rising order of blocks, at least one.
        threshold: what must be reached.
        switches: blocks that are the first of a new prompt.
        hollow: blocks whose points are drawn hollow.
    """
    shown = [threshold, *(value for _, value in values if _finite(value))]
    axis = around(min(shown), max(shown), HEIGHT - BOTTOM, TOP)

    def y(value: float | None) -> float:
        if value == math.inf:
            return TOP
        return axis.at(value) if _finite(value) else HEIGHT - BOTTOM

    return _lay_out(
        [(block, value, _finite(value) or value == math.inf) for block, value in values],
        y,
        lambda value: value >= threshold,
        axis.ticks(),
        Tick(y(threshold), f"threshold {threshold:.3g}"),
        switches,
        hollow,
    )


def _lay_out(
    values: Sequence[tuple[int, float | None, bool]],
    y: Callable[[float | None], float],
    passes: Callable[[float], bool],
    y_ticks: tuple[Tick, ...],
    threshold: Tick,
    switches: Sequence[int],
    hollow: Collection[int] = (),
) -> Chart:
    """Blocks from left to right: (block, value, whether it is drawn)."""
    first, last = values[0][0], values[-1][0]

    def x(block: float) -> float:
        share = (block - first + 0.5) / (last - first + 1)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    points = tuple(
        Point(
            x(block), y(value), block, value, value is not None and passes(value), drawn,
            block in hollow,
        )
        for block, value, drawn in values
    )  # fmt: skip
    step = math.ceil((last - first + 1) / MAX_BLOCK_LABELS)
    return Chart(
        points=points,
        lines=tuple(
            " ".join(f"{p.x},{p.y}" for p in run)
            for drawn, run in groupby(points, lambda p: p.drawn)
            if drawn
        ),
        x_ticks=tuple(Tick(x(b), str(b)) for b in range(first, last + 1, step)),
        y_ticks=y_ticks,
        threshold=threshold,
        switches=_labeled([x(b - 0.5) for b in switches if first <= b <= last]),
    )


def _labeled(switches: Sequence[float]) -> tuple[Tick, ...]:
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
