"""Axes and ticks of a drawing."""

import math
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Tick:
    """A labeled position on an axis, in units of the drawing."""

    at: float
    label: str


@dataclass(frozen=True)
class Box:
    """A rectangle, in units of the drawing."""

    x: float
    y: float
    width: float
    height: float

    @classmethod
    def between(cls, left: float, top: float, right: float, bottom: float) -> Self:
        """Returns the rectangle with these edges."""
        return cls(left, top, round(right - left, 1), round(bottom - top, 1))


@dataclass(frozen=True)
class Axis:
    """A linear axis: values from ``low`` to ``high`` lie from ``start`` to ``end``.

    ``low`` is below ``high``; ``start`` may lie beyond ``end``, as for an axis that points up.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Returns the position of a value, clamped to the axis."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, most: int = 8) -> tuple[Tick, ...]:
        """Returns up to ``most`` (at least 4) labels spaced by 1, 2 or 5 times a power of ten."""
        step = round_step((self.high - self.low) / (most - 1))
        digits = max(0, -math.floor(math.log10(step)))
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        values = (number * step for number in range(first, last + 1))
        return tuple(Tick(self.at(value), f"{value:.{digits}f}") for value in values)


def around(low: float, high: float, start: float, end: float) -> Axis:
    """Returns a non-empty axis over ``low`` to ``high`` with some margin."""
    room = max((high - low) * 0.05, abs(high) * 1e-6) or 1.0
    return Axis(low - room, high + room, start, end)


def round_step(least: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
