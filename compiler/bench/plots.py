"""Coordinates of a chart of samples in the order in which they were taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vidc.compiler.report.axes import Tick, around, round_step

WIDTH = 1000
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 16, 48
TIMELINE_HEIGHT = 320
MOST_DOTS = 100
"""Largest number of samples that a timeline draws as dots."""


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
