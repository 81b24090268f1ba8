"""Gates that compare metrics with ``configs/thresholds.toml``."""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any

from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics
from vidc.plugins.errors import UsageError, nearest

UPPER_LIMITS = frozenset({"relative_l2", "max_error"})
"""Metrics with an upper limit; all others have a lower limit."""


class Where(StrEnum):
    """Level of a comparison with the reference."""

    COMPONENT = "component"
    """Outputs of one component on given inputs."""
    ROLLOUT = "rollout"
    """Latents of one block or all blocks of a rollout, with the errors of earlier blocks."""
    PIXELS = "pixels"
    """Decoded frames of one block of a rollout."""
    FORCED = "forced"
    """Decoded frames of one block that goes on from the reference's blocks, for 8 bits."""


OF_EAGER = "relative_l2_of_eager"
"""Key of the limit on ``relative_l2`` as a multiple of PyTorch eager's own error."""
TRAINED_TABLES = {Where.PIXELS: "trained", Where.FORCED: "forced"}
"""Keys of the thresholds for frames of trained weights, by level."""
Thresholds = Mapping[Where, Mapping[str, float]]
"""Thresholds by level and metric."""


@dataclass(frozen=True)
class Subject:
    """Component, and block of a rollout, that a gate judges."""

    component: str
    block: int | None = None


@dataclass(frozen=True)
class Gate:
    """Gate: one metric of one subject against its threshold.

    ``value`` is None when the subject was not measured.
    """

    where: Where
    component: str
    metric: str
    value: float | None
    threshold: float
    block: int | None = None

    @property
    def passed(self) -> bool:
        """Returns True if the value exists, is a number and meets the threshold."""
        if self.value is None:
            return False
        # A NaN is false in either comparison.
        if self.metric in UPPER_LIMITS:
            return self.value <= self.threshold
        return self.value >= self.threshold

    @property
    def share(self) -> float:
        """Share of an upper limit that the value uses, or a lower limit's share of the value.

        At most 1 if the gate passed.
        """
        if self.value is None or math.isnan(self.value):
            return math.inf
        used, limit = self.value, self.threshold
        if self.metric not in UPPER_LIMITS:
            used, limit = limit, used
            if limit <= 0 < used:
                return math.inf
        return used / limit if limit else (math.inf if used else 0.0)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; ``value`` is null if missing or not finite.

        A null that passed is an infinite PSNR or SQNR: the tensors are equal.
        """
        value = self.value if self.value is not None and math.isfinite(self.value) else None
        gate: dict[str, Any] = {
            "where": self.where.value,
            "component": self.component,
            "metric": self.metric,
            "value": value,
            "threshold": self.threshold,
            "passed": self.passed,
        }
        if self.block is not None:
            gate["block"] = self.block
        return gate


def nearest_gates(gates: Iterable[Gate]) -> list[Gate]:
    """Returns the gate of each level and metric that uses the largest share of its limit."""
    found: dict[tuple[Where, str], Gate] = {}
    for gate in gates:
        key = (gate.where, gate.metric)
        if key not in found or gate.share > found[key].share:
            found[key] = gate
    return [*found.values()]


def load_thresholds(precision: str) -> Thresholds:
    """Returns the thresholds of a precision for any weights.

    Raises:
        UsageError: ``VIDC-VALIDATE-PRECISION`` for a precision that has none.
    """
    found = _tables(precision).items()
    return {Where(where): limits for where, limits in found if where not in TRAINED_TABLES.values()}


def load_trained_thresholds(precision: str, where: Where) -> Mapping[str, float]:
    """Returns the thresholds of frames of trained weights by metric; none in high precision.

    Raises:
        UsageError: as ``load_thresholds``.
    """
    return _tables(precision).get(TRAINED_TABLES[where], {})


def _tables(precision: str) -> Mapping[str, Mapping[str, float]]:
    text = files("vidc.configs").joinpath("thresholds.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    if precision not in tables:
        raise UsageError(
            "VIDC-VALIDATE-PRECISION",
            f"no thresholds for precision {precision!r}",
            nearest(precision, tables),
        )
    found: Mapping[str, Mapping[str, float]] = tables[precision]
    return found


def looser(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Returns the looser threshold of each metric that both tables have."""
    return {
        metric: (max if metric in UPPER_LIMITS else min)(one[metric], other[metric])
        for metric in one
        if metric in other
    }


def judge(
    where: Where,
    expected: Iterable[Subject],
    measured: Mapping[Subject, TensorMetrics | PixelMetrics],
    thresholds: Thresholds,
    eager: Mapping[Subject, TensorMetrics] | None = None,
) -> list[Gate]:
    """Returns a gate for each expected subject and each metric with a threshold at ``where``.

    An expected subject that was not measured fails all its gates. If PyTorch eager was measured in
    the subject's precision, a multiple of its error also limits ``relative_l2``.

    Raises:
        ValueError: if a subject was measured but not expected.
    """
    subjects = list(expected)
    if surplus := measured.keys() - set(subjects):
        raise ValueError(f"measured but not expected at {where}: {surplus}")
    return [
        Gate(
            where=where,
            component=subject.component,
            metric=metric,
            value=getattr(measured[subject], metric) if subject in measured else None,
            threshold=threshold,
            block=subject.block,
        )
        for subject in subjects
        for metric, threshold in _limits(where, thresholds, (eager or {}).get(subject)).items()
    ]


def _limits(
    where: Where, thresholds: Thresholds, eager: TensorMetrics | None
) -> dict[str, float]:  # fmt: skip
    limits = thresholds[where]
    found = {metric: limit for metric, limit in limits.items() if metric != OF_EAGER}
    if eager is not None and OF_EAGER in limits:
        # No limit is below float32's: eager may be the reference itself.
        least = load_thresholds("fp32")[where]["relative_l2"]
        own = max(limits[OF_EAGER] * eager.relative_l2, least)
        found["relative_l2"] = min(found["relative_l2"], own)
    return found


def all_passed(gates: Sequence[Gate]) -> bool:
    """Returns True if there are gates and all passed."""
    return bool(gates) and all(gate.passed for gate in gates)
