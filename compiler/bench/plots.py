"""Coordinates of sample charts: timelines and histograms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vidc.compiler.bench.statistics import Summary
from vidc.compiler.report.axes import Axis, Box, Tick, around, round_step

WIDTH = 1000
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 16, 48
TIMELINE_HEIGHT = 320
MOST_BINS = 40
MOST_DOTS = 100
"""Largest number of samples that a timeline draws as dots."""
HISTOGRAM_HEIGHT, HISTOGRAM_BOTTOM = 150, 28


@dataclass(frozen=True)
class Series:
    """One stream's samples as the points of an SVG polyline.

    ``dots`` is an SVG path with a zero-length stroke for each sample, which round caps turn into a
    dot; empty if the dots would overlap.
    """

    name: str
    points: str
    dots: str


@dataclass(frozen=True)
class Timeline:
    """Samples in the order in which they were taken."""

    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    width: int = WIDTH
    height: int = TIMELINE_HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = TIMELINE_HEIGHT - BOTTOM


@dataclass(frozen=True)
class Histogram:
    """Histogram of one stream's samples, with the median and its interval.

    ``most`` is the number of samples of the tallest bar, and its height.
    """

    name: str
    bars: tuple[Box, ...]
    median: float
    interval: Box | None
    ticks: tuple[Tick, ...]
    most: Tick
    width: int = WIDTH
    height: int = HISTOGRAM_HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HISTOGRAM_HEIGHT - HISTOGRAM_BOTTOM


def timeline(samples: Mapping[str, Sequence[float]]) -> Timeline:
    """Lays out one or more samples of each stream by its name."""
    values = [value for own in samples.values() for value in own]
    most = max(len(own) for own in samples.values())
    x = around(1, most, LEFT, WIDTH - RIGHT)
    y = around(min(values), max(values), TIMELINE_HEIGHT - BOTTOM, TOP)
    step = max(1, int(round_step(most / 10)))
    placed = {
        name: [(x.at(i), y.at(value)) for i, value in enumerate(own, start=1)]
        for name, own in samples.items()
    }
    return Timeline(
        series=tuple(
            Series(
                name,
                " ".join(f"{across},{up}" for across, up in points),
                "".join(f"M{across} {up}h0" for across, up in points if most <= MOST_DOTS),
            )
            for name, points in placed.items()
        ),
        x_ticks=tuple(Tick(x.at(i), str(i)) for i in range(step, most + 1, step)),
        y_ticks=y.ticks(),
    )


def histogram(name: str, samples: Sequence[float], summary: Summary) -> Histogram:
    """Lays out one or more samples of a stream, on an axis of their own."""
    x = around(min(samples), max(samples), LEFT, WIDTH - RIGHT)
    # Twice the square root of the number of samples; more bars would hold single samples.
    bins = min(MOST_BINS, math.ceil(2 * math.sqrt(len(samples))))
    counts, edges = np.histogram(samples, bins=bins, range=(x.low, x.high))
    most, bottom = int(counts.max()), HISTOGRAM_HEIGHT - HISTOGRAM_BOTTOM
    y = Axis(0, most, bottom, TOP)
    bars = [
        Box.between(x.at(float(low)), y.at(int(count)), x.at(float(high)), bottom)
        for count, low, high in zip(counts, edges, edges[1:], strict=False)
        if count
    ]
    band = None
    if summary.ci95 is not None:
        low, high = summary.ci95
        band = Box.between(x.at(low), TOP, x.at(high), bottom)
    return Histogram(
        name, tuple(bars), x.at(summary.median), band, x.ticks(), Tick(y.at(most), str(most))
    )
