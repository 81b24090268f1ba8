"""Result of a benchmark: machine, protocol and every raw sample."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from vidc.compiler.bench.metrics import Decoding, Metric, Samples, summaries
from vidc.compiler.bench.profile import Profile
from vidc.compiler.bench.statistics import CONFIDENCE, RESAMPLES
from vidc.compiler.bench.streams import OURS
from vidc.compiler.bench.sweep import Sweep
from vidc.compiler.bench.usage import MAX_SHARE
from vidc.compiler.bench.verdict import LEAST_DELTA, LEAST_RATIO, Outcome, Verdict, judge
from vidc.compiler.store.digest import flatten
from vidc.plugins.errors import UsageError
from vidc.plugins.untrusted_files import require_regular
from vidc.runtime.strict import plain

SCHEMA = 1
MAX_BYTES = 64 * 2**20
DISCIPLINE = {
    "confidence": CONFIDENCE,
    "resamples": RESAMPLES,
    "least_delta": LEAST_DELTA,
    "least_ratio": LEAST_RATIO,
}


@dataclass(frozen=True)
class Judgment:
    """Verdict on one metric against another stream or a stored result.

    Attributes:
        against: a baseline's name, or that of a stored result.
        metric: the figure.
        verdict: outcome and statistics.
        gates: True if slower is a regression, as against a stored result.
    """

    against: str
    metric: str
    verdict: Verdict
    gates: bool

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        named = {"against": self.against, "metric": self.metric, "gates": self.gates}
        return named | self.verdict.to_json()


@dataclass(frozen=True)
class Stored:
    """Fields of a stored result that comparisons read."""

    name: str
    machine: Mapping[str, Any]
    workload: Mapping[str, Any]
    disturbance: float
    samples: Samples

    @classmethod
    def read(cls, path: Path, metrics: Mapping[str, Metric]) -> Self:
        """Reads these metrics from a result of ``vidc bench``.

        Raises:
            UsageError: ``VIDC-BENCH-RESULT``, it cannot be read or has another schema.
        """
        try:
            require_regular(path)
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise _no_result(path, str(error.strerror)) from error
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            document = json.loads(data)
            if document["schema"] != SCHEMA:
                raise ValueError(f"it has schema {document['schema']!r}, not {SCHEMA}")
            found = {
                name: _samples(metric["samples"])
                for name, metric in document["metrics"].items()
                if name in metrics and metrics[name].judged
            }
            machine, workload = document["fingerprint"]["machine"], document["workload"]
            if not isinstance(machine, dict) or not isinstance(workload, dict):
                raise TypeError("machine or workload is no table")
            disturbance = float(document["disturbance"] or 0.0)
            if not found or not 0 <= disturbance <= 1:
                raise ValueError("it has none of the metrics, or its disturbance is no share")
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise _no_result(path, f"it is no result of vidc bench: {error}") from error
        return cls(path.name, machine, workload, disturbance, found)


@dataclass(frozen=True)
class Result:
    """A finished benchmark.

    Attributes:
        bundle: name of the bundle.
        decoding: names of the program's decoder.
        workload: sizes, precision and backend.
        protocol: numbers of rounds and samples.
        fingerprint: machine, software and bundle.
        streams: samples by stream and metric; ours comes first.
        judgments: verdicts on ours against every other stream, and against a stored result.
        steps: for each of our cold starts, the seconds at the end of each step, as in ``Start``.
        disturbance: CPU share of other processes, if known.
        gpu_state: clocks and power of the GPU as the last sample was taken.
        profile: profile, if requested.
        sweep: sweep of a setting, if requested.
        notes: remarks for the reader.
    """

    bundle: str
    decoding: Decoding
    workload: Mapping[str, Any]
    protocol: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    streams: Mapping[str, Samples]
    judgments: tuple[Judgment, ...]
    steps: tuple[Mapping[str, float], ...] = ()
    disturbance: float | None = None
    gpu_state: Mapping[str, str | None] | None = None
    profile: Profile | None = None
    sweep: Sweep | None = None
    notes: tuple[str, ...] = ()

    @property
    def banner(self) -> str | None:
        """Warning that other processes disturbed the measurement; None on a quiet machine."""
        if self.disturbance is None or self.disturbance <= MAX_SHARE:
            return None
        return (
            f"disturbed: other processes took {self.disturbance:.0%} of the CPU while this was "
            "measured; measure again on a quiet machine"
        )

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Metrics of the program, in order."""
        return self.decoding.metrics

    @property
    def regressions(self) -> tuple[Judgment, ...]:
        """Metrics that are slower than in the stored result."""
        return tuple(
            each for each in self.judgments
            if each.gates and each.verdict.outcome is Outcome.SLOWER
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``vidc bench --json`` without its schema number."""
        metrics = {
            stream: summaries(samples, self.metrics) for stream, samples in self.streams.items()
        }
        return {
            "bundle": self.bundle,
            "passed": not self.regressions,
            "workload": dict(self.workload),
            "protocol": {**self.protocol, **DISCIPLINE},
            "fingerprint": dict(self.fingerprint),
            "metrics": metrics.pop(OURS),
            "baselines": metrics,
            "verdicts": [each.to_json() for each in self.judgments],
            "cold_starts": [dict(steps) for steps in self.steps],
            "disturbance": self.disturbance,
            "gpu_state": None if self.gpu_state is None else dict(self.gpu_state),
            "profile": plain(self.profile),
            "sweep": None if self.sweep is None else self.sweep.to_json(self.metrics),
            "banner": self.banner,
            "notes": list(self.notes),
        }


def against_baselines(
    streams: Mapping[str, Samples], metrics: Mapping[str, Metric]
) -> list[Judgment]:
    """Judges each of these metrics of our stream against every other stream of the run."""
    return [
        each
        for name, theirs in streams.items()
        if name != OURS
        for each in _judgements(metrics, name, streams[OURS], theirs, None, gates=False)
    ]


def against_stored(result: Result, stored: Stored) -> Result:
    """Returns the result with verdicts and differences against a stored one.

    On another machine, or on a CPU that others used, the verdict is ``cannot tell``.
    """
    here = result.fingerprint["machine"]
    doubt = None
    if stored.machine != here:
        doubt = f"{stored.name} is of another machine: {differences(stored.machine, here)}"
    elif here["gpu"] is None and max(stored.disturbance, result.disturbance or 0.0) > MAX_SHARE:
        doubt = (
            f"other processes took {stored.disturbance:.0%} of the CPU there, "
            f"{result.disturbance or 0.0:.0%} here"
        )
    notes = []
    if stored.workload != result.workload:
        apart = differences(stored.workload, result.workload)
        notes.append(f"{stored.name} is of another workload: {apart}")
    ours = result.streams[OURS]
    judgments = _judgements(result.metrics, stored.name, ours, stored.samples, doubt, gates=True)
    return replace(
        result,
        judgments=(*result.judgments, *judgments),
        notes=(*result.notes, *notes),
    )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Returns the entries in which two tables differ, such as ``cores 8 there, 4 here``."""
    there, here = flatten(there), flatten(here)
    names = [*here, *(name for name in there if name not in here)]
    return "; ".join(
        f"{name} {there.get(name)} there, {here.get(name)} here"
        for name in names
        if there.get(name) != here.get(name)
    )


def _judgements(
    metrics: Mapping[str, Metric],
    against: str,
    ours: Samples,
    theirs: Samples,
    doubt: str | None,
    gates: bool,
) -> list[Judgment]:
    return [
        Judgment(against, name, judge(ours[name], theirs[name], doubt), gates)
        for name, metric in metrics.items()
        if metric.judged and name in ours and name in theirs
    ]


def _samples(values: Any) -> list[float]:
    if not isinstance(values, list) or not values:
        raise ValueError("samples of a metric are no list")
    if not all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in values):
        raise ValueError("samples of a metric are not all positive and finite")
    return [float(value) for value in values]


def _no_result(path: Path, why: str) -> UsageError:
    return UsageError(
        "VIDC-BENCH-RESULT",
        f"{path} cannot be compared with: {why}",
        "give the JSON that vidc bench wrote beside its report",
    )
