"""Statistics of samples: medians with bootstrap intervals, tails and effect sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 0
"""Fixed seed of the resampling, so that intervals are reproducible."""
LEAST_FOR_INTERVAL = 6
"""Fewest samples whose range covers the median with 95 % probability."""
LEAST_FOR_P99 = 100
"""Fewest samples whose 99th percentile by nearest rank is not the maximum."""
_DRAWN_AT_ONCE = 2**20


@dataclass(frozen=True)
class Summary:
    """Summary of samples, in their unit.

    Attributes:
        n: number of samples.
        median: median of the samples.
        ci95: 95 % percentile bootstrap interval of the median, None below 6 samples.
        mean: mean of the samples.
        p99: 99th percentile by nearest rank, None below 100 samples.
        max: the largest sample.
    """

    n: int
    median: float
    ci95: tuple[float, float] | None
    mean: float
    p99: float | None
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Summarizes one or more finite samples.

        Raises:
            ValueError: there is none, or one is not finite.
        """
        values = as_array(samples)
        n = len(values)
        return cls(
            n=n,
            median=float(np.median(values)),
            ci95=interval(bootstrap_medians(values, SEED)) if n >= LEAST_FOR_INTERVAL else None,
            mean=float(values.mean()),
            p99=float(np.sort(values)[-(-99 * n // 100) - 1]) if n >= LEAST_FOR_P99 else None,
            max=float(values.max()),
        )


def as_array(samples: Sequence[float]) -> Array:
    """Returns samples as float64 ``[n]``; raises ValueError if empty or not finite."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("statistics need a list of one or more finite samples")
    return values


def bootstrap_medians(values: Array, seed: int) -> Array:
    """Returns medians of ``RESAMPLES`` resamples with replacement, ``[RESAMPLES]``."""
    values = np.sort(values)  # So that their order does not matter.
    generator = np.random.default_rng(seed)
    n = len(values)
    rows = max(1, _DRAWN_AT_ONCE // n)
    medians = [
        np.median(values[generator.integers(n, size=(min(rows, RESAMPLES - start), n))], axis=1)
        for start in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(medians)


def interval(estimates: Array) -> tuple[float, float]:
    """Returns the middle 95 % of bootstrap estimates."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(estimates, [tail, 1 - tail])
    return float(low), float(high)


def cliffs_delta(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns P(ours > theirs) - P(ours < theirs), -1 to 1.

    Cliff, "Dominance statistics: ordinal analyses to answer ordinal questions" (1993).
    """
    a, b = as_array(ours), np.sort(as_array(theirs))
    larger = np.searchsorted(b, a, side="left").sum()
    smaller = (len(b) - np.searchsorted(b, a, side="right")).sum()
    return float(int(larger) - int(smaller)) / (len(a) * len(b))
