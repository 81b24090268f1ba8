"""Verdicts on whether one set of samples is faster than another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from vidc.compiler.bench.statistics import (
    LEAST_FOR_INTERVAL,
    SEED,
    Array,
    as_array,
    bootstrap_medians,
    cliffs_delta,
    interval,
)
from vidc.runtime.strict import plain

LEAST_RATIO = 1.10
"""Smallest ratio of medians that counts as a difference, and the bound for ``same``."""
LEAST_DELTA = 0.3
"""Smallest Cliff's delta that counts as a difference."""


class Outcome(StrEnum):
    """Outcome of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """Outcome with its statistics.

    Attributes:
        outcome: ``faster`` and ``slower`` need intervals of the medians that do not overlap,
            |delta| of at least 0.3 and medians that differ by a factor of at least 1.10; ``same``
            needs the ratio's interval to lie within 1/1.10 and 1.10.
        speedup: ratio of their median to ours.
        speedup_ci95: 95 % bootstrap interval of the ratio; None with too few samples.
        delta: Cliff's delta of ours against theirs, negative where ours are shorter.
        reasons: reasons for the outcome; for ``cannot tell``, why no other outcome holds.
    """

    outcome: Outcome
    speedup: float
    speedup_ci95: tuple[float, float] | None
    delta: float
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        fields = plain(self)
        return {"verdict": fields.pop("outcome"), **fields}


def judge(ours: Sequence[float], theirs: Sequence[float], doubt: str | None = None) -> Verdict:
    """Compares durations, in any one unit; ``judge(b, a)`` comes to the opposite outcome.

    Args:
        ours: positive samples.
        theirs: positive samples.
        doubt: reason why the two cannot be compared at all.

    Raises:
        ValueError: no samples, or some that are not positive and finite.
    """
    a, b = as_array(ours), as_array(theirs)
    if min(a.min(), b.min()) <= 0:
        raise ValueError("durations must be positive")
    speedup, delta = float(np.median(b) / np.median(a)), cliffs_delta(ours, theirs)
    few = [
        f"{whose}: n = {len(values)}, at least {LEAST_FOR_INTERVAL} samples are needed"
        for whose, values in (("ours", a), ("theirs", b))
        if len(values) < LEAST_FOR_INTERVAL
    ]
    if few:
        reasons = ([] if doubt is None else [doubt]) + few
        return Verdict(Outcome.CANNOT_TELL, speedup, None, delta, tuple(reasons))
    ratio = _log_ratio(a, b)
    ci95 = math.exp(ratio[0]), math.exp(ratio[1])
    if doubt is not None:
        return Verdict(Outcome.CANNOT_TELL, speedup, ci95, delta, (doubt,))
    outcome, reasons = _decide(a, b, ratio, delta)
    return Verdict(outcome, speedup, ci95, delta, tuple(reasons))


def _decide(
    ours: Array, theirs: Array, ratio: tuple[float, float], delta: float
) -> tuple[Outcome, list[str]]:
    own, other = (interval(bootstrap_medians(values, SEED)) for values in (ours, theirs))
    apart = own[1] < other[0] or other[1] < own[0]
    shorter, longer = sorted((float(np.median(ours)), float(np.median(theirs))))
    factor = longer / shorter
    tests = {
        f"the medians' intervals {'do not overlap' if apart else 'overlap'}": apart,
        f"|Cliff's delta| {abs(delta):.2f} is {_side(abs(delta), LEAST_DELTA)} {LEAST_DELTA}": (
            abs(delta) >= LEAST_DELTA
        ),
        f"the medians differ {factor:.3f}x, {_side(factor, LEAST_RATIO)} {LEAST_RATIO:.2f}x": (
            factor >= LEAST_RATIO
        ),
    }
    if all(tests.values()):
        return (Outcome.FASTER if own < other else Outcome.SLOWER), list(tests)
    bound = math.log(LEAST_RATIO)
    low, high = (f"{math.exp(end):.3f}" for end in ratio)
    reach = f"the ratio's interval {low} to {high}"
    if -bound <= ratio[0] and ratio[1] <= bound:
        return Outcome.SAME, [f"{reach} lies within 1/{LEAST_RATIO:.2f} and {LEAST_RATIO:.2f}"]
    missed = [text for text, passed in tests.items() if not passed]
    beyond = f"{reach} leaves 1/{LEAST_RATIO:.2f} to {LEAST_RATIO:.2f}"
    return Outcome.CANNOT_TELL, [*missed, beyond]


def _side(value: float, least: float) -> str:
    return "at least" if value >= least else "below"


def _log_ratio(a: Array, b: Array) -> tuple[float, float]:
    """Returns the 95 % interval of log(median b / median a)."""
    # Two seeds keep the draws independent; sorting makes the result symmetric.
    if tuple(np.sort(b)) < tuple(np.sort(a)):
        low, high = _log_ratio(b, a)
        return -high, -low
    # The ratio before the logarithm: the samples' unit then changes no rounding.
    return interval(np.log(bootstrap_medians(b, SEED + 1) / bootstrap_medians(a, SEED)))
