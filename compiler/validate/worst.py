"""Tensors with the largest errors: histograms and outliers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vidc.compiler.validate.golden import SAMPLES, Record, sample_indices
from vidc.compiler.validate.metrics import TensorMetrics, compare
from vidc.plugins.signature import Signature

MOST_TENSORS = 6
MOST_OF_COMPONENT = 2
"""Caches of neighboring layers have similar errors and would hide other components."""
MOST_OUTLIERS = 8
BINS = 48

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Call:
    """Tensor that one component call wrote, with the reference's.

    ``number`` counts the calls of this component alone, from 0.
    """

    component: str
    number: int
    tensor: str
    found: Tensor
    expected: Tensor
    metrics: TensorMetrics


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values in ``BINS`` equal bins from ``low`` to ``high``."""

    low: float
    high: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Outlier:
    """Value far from its reference, with its index in the whole tensor."""

    index: tuple[int, ...]
    reference: float
    candidate: float

    @property
    def error(self) -> float:
        """``candidate - reference``; NaN where either is no finite number."""
        error = self.candidate - self.reference
        return error if math.isfinite(error) else math.nan


@dataclass(frozen=True)
class WorstTensor:
    """One tensor of a component, on the call with the largest relative error.

    Attributes:
        component: component that wrote it.
        tensor: name of the tensor.
        call: number of earlier calls of the component.
        shape: shape of the whole tensor.
        compared: number of values in golden data.
        not_finite: number of NaN or Inf among them in the candidate.
        metrics: over the compared values.
        reference: the reference's values.
        candidate: the candidate's, in the same bins.
        error: ``candidate - reference``, in bins that are symmetric about zero.
        outliers: largest errors first; non-finite ones come before all others.
    """

    component: str
    tensor: str
    call: int
    shape: tuple[int, ...]
    compared: int
    not_finite: int
    metrics: TensorMetrics
    reference: Histogram
    candidate: Histogram
    error: Histogram
    outliers: tuple[Outlier, ...]


def calls(found: Record, reference: Record) -> Iterator[Call]:
    """Yields every tensor of every call with the reference's.

    A component that is not called as often as in the reference is left out.
    """
    called = _by_component(found)
    for component, expected_calls in _by_component(reference).items():
        if len(called.get(component, ())) != len(expected_calls):
            continue
        pairs = zip(called[component], expected_calls, strict=True)
        for number, (written, expected) in enumerate(pairs):
            for name, value in expected.items():
                metrics = compare(written[name], value)
                yield Call(component, number, name, written[name], value, metrics)


def worst_tensors(
    found: Record, reference: Record, signatures: Mapping[str, Signature]
) -> list[WorstTensor]:
    """Returns up to ``MOST_TENSORS`` tensors, largest relative error first.

    One component has ``MOST_OF_COMPONENT`` of them at most. Each tensor is described on its worst
    call. A tensor that equals the reference on every call is left out.

    Args:
        found: the candidate's record.
        reference: the reference's record.
        signatures: signatures by component; their shapes give the positions of samples.
    """
    worst: dict[tuple[str, str], Call] = {}
    for call in calls(found, reference):
        before = worst.get((call.component, call.tensor))
        if before is None or call.metrics.relative_l2 > before.metrics.relative_l2:
            worst[call.component, call.tensor] = call
    ranked = sorted(worst.values(), key=lambda call: -call.metrics.relative_l2)
    shown: list[Call] = []
    for call in ranked:
        own = sum(call.component == other.component for other in shown)
        if call.metrics.relative_l2 > 0 and own < MOST_OF_COMPONENT:
            shown.append(call)
    return [_look_at(call, signatures[call.component]) for call in shown[:MOST_TENSORS]]


def _look_at(call: Call, signature: Signature) -> WorstTensor:
    shape = signature[call.tensor].component_shape
    candidate = call.found.double().flatten().numpy()
    reference = call.expected.double().flatten().numpy()
    # Non-finite values are counted below, so warnings add nothing.
    with np.errstate(invalid="ignore"):
        error = candidate - reference
    low, high = _ends(np.concatenate([reference, candidate]))
    _, reach = _ends(np.abs(error))
    return WorstTensor(
        component=call.component,
        tensor=call.tensor,
        call=call.number,
        shape=shape,
        compared=candidate.size,
        not_finite=int((~np.isfinite(candidate)).sum()),
        metrics=call.metrics,
        reference=_histogram(reference, low, high),
        candidate=_histogram(candidate, low, high),
        error=_histogram(error, -reach, reach),
        outliers=_outliers(candidate, reference, error, shape),
    )


def _ends(values: Values) -> tuple[float, float]:
    """Returns distinct ends of the finite values, even for one value or none."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    # float64 cannot separate the edges of narrower bins.
    room = max(abs(low), abs(high)) * 1e-6 or 1.0
    return (low, high) if high - low > room else (low - room, high + room)


def _histogram(values: Values, low: float, high: float) -> Histogram:
    counts, _ = np.histogram(values[np.isfinite(values)], BINS, (low, high))
    return Histogram(low, high, tuple(int(count) for count in counts))


def _outliers(
    candidate: Values, reference: Values, error: Values, shape: tuple[int, ...]
) -> tuple[Outlier, ...]:
    size = np.where(np.isfinite(error), np.abs(error), np.inf)
    far = [place for place in np.argsort(-size, kind="stable")[:MOST_OUTLIERS] if size[place] > 0]
    whole = math.prod(shape)
    sampled = candidate.size == SAMPLES < whole
    places = sample_indices(whole)[far].tolist() if sampled else far
    return tuple(
        Outlier(
            tuple(int(index) for index in np.unravel_index(place, shape)),
            float(reference[kept]),
            float(candidate[kept]),
        )
        for kept, place in zip(far, places, strict=True)
    )


def _by_component(record: Record) -> dict[str, list[dict[str, Tensor]]]:
    found: dict[str, list[dict[str, Tensor]]] = {}
    for component, written in record.calls:
        found.setdefault(component, []).append(written)
    return found
