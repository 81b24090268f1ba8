"""How a tensor's values and errors are spread, as coordinates of one drawing with two panels."""

import math
from dataclasses import dataclass
from itertools import chain

from vidc.compiler.report.axes import Axis, Box, Tick
from vidc.compiler.validate.worst import Histogram, WorstTensor

WIDTH, HEIGHT = 1000, 190
TOP, BOTTOM = 12, 44
VALUES, ERRORS = (56, 500), (556, 980)
"""Left and right end of each panel."""
MOST_TICKS = 8


@dataclass(frozen=True)
class Panel:
    """One histogram or two over one axis; heights are logarithms of counts.

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
    """The drawing of one tensor: values of reference and candidate, and errors."""

    values: Panel
    errors: Panel
    width: int = WIDTH
    height: int = HEIGHT
    bottom: int = HEIGHT - BOTTOM


def spread(worst: WorstTensor) -> Spread:
    """Lays out the histograms of a tensor."""
    return Spread(
        values=_panel(worst.reference, worst.candidate, *VALUES),
        errors=_panel(worst.error, None, *ERRORS),
    )


def _panel(bars: Histogram, outlined: Histogram | None, left: float, right: float) -> Panel:
    counts = [*bars.counts, *(outlined.counts if outlined else ())]
    most, bottom = max(1, *counts), HEIGHT - BOTTOM
    # A single outlier would not be seen beside thousands of values on a linear axis.
    y = Axis(0, math.log10(1 + most), bottom, TOP)
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
    """Labels in few digits whatever the size of the values."""
    least = 10.0 ** math.floor(math.log10(max(abs(x.low), abs(x.high))))
    if 1e-3 <= least < 1e4:
        return x.ticks(MOST_TICKS)
    scaled = Axis(x.low / least, x.high / least, x.start, x.end).ticks(MOST_TICKS)
    exponent = round(math.log10(least))
    return tuple(
        Tick(tick.at, f"{tick.label}e{exponent}" if float(tick.label) else "0") for tick in scaled
    )
