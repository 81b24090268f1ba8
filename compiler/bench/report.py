"""Self-contained HTML report of a benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from vidc.compiler.bench.plots import timeline
from vidc.compiler.bench.record import DISCIPLINE, Judgment, Result
from vidc.compiler.bench.statistics import LEAST_FOR_INTERVAL, LEAST_FOR_P99, Summary
from vidc.compiler.bench.streams import OURS
from vidc.compiler.bench.sweep import Sweep
from vidc.compiler.bench.text import bare, change, facts, figure, interval, plain, rate
from vidc.compiler.bench.verdict import Outcome, Verdict
from vidc.compiler.report.render import render

FIRST = "stream_video_fps"
"""The first headline."""
KERNELS_SHOWN = 12
TIMELINES = ("block_ms", "stream_ms", "switch_block_ms")


@dataclass(frozen=True)
class _Row:
    """Figures of one stream and one metric."""

    stream: str
    summary: Summary


@dataclass(frozen=True)
class _Verdicts:
    """Verdicts against one other stream, with the reasons that are not shared by all."""

    against: str
    shared: str
    rows: tuple[tuple[Judgment, str], ...]


def render_html(result: Result) -> str:
    """Returns the page with inline styles and drawings; every text is escaped."""
    rows = {name: _rows(result, name) for name in result.metrics}
    verdicts = _verdicts(result)
    swept = [name for name in result.decoding.durations if rows[name]]
    summaries = [row.summary for found in rows.values() for row in found]
    return render(
        "vidc.compiler.bench/report.html.j2",
        {
            "bare": bare,
            "change": change,
            "figure": figure,
            "plain": plain,
            "interval": interval,
            "rate": rate,
        },
        result=result,
        metrics=result.metrics,
        rows={name: found for name, found in rows.items() if found},
        verdicts=verdicts,
        explained=any(reasons for group in verdicts for _, reasons in group.rows),
        with_intervals=any(each.ci95 for each in summaries),
        with_tails=any(each.p99 is not None for each in summaries),
        headlines=[
            (metric.headline, figure(rows[name][0].summary.median, metric.unit))
            for name, metric in sorted(result.metrics.items(), key=lambda item: item[0] != FIRST)
            if metric.headline and _ours(rows[name])
        ],
        timelines={
            name: timeline({row.stream: result.streams[row.stream][name] for row in rows[name]})
            for name in TIMELINES
            if rows[name]
        },
        colors=dict(zip(result.streams, ("one", "two", "three", "four"), strict=False)),
        discipline=DISCIPLINE,
        least_for_interval=LEAST_FOR_INTERVAL,
        least_for_p99=LEAST_FOR_P99,
        profile=result.profile,
        sweep=result.sweep,
        swept=None if result.sweep is None else _swept(result.sweep, swept),
        facts=_facts(result),
        workload=facts(result.workload),
        kernels_shown=KERNELS_SHOWN,
        phases=result.decoding.phases,
        swept_metrics=swept,
    )


def _rows(result: Result, metric: str) -> list[_Row]:
    return [
        _Row(stream, Summary.of(samples[metric]))
        for stream, samples in result.streams.items()
        if metric in samples
    ]


def _ours(rows: list[_Row]) -> bool:
    return bool(rows) and rows[0].stream == OURS


def _swept(found: Sweep, names: Sequence[str]) -> dict[str, list[tuple[Summary, Verdict]]]:
    """Returns the rows of durations for each value of a sweep."""
    return {
        row.value: [(Summary.of(row.samples[name]), row.verdicts[name]) for name in names]
        for row in found.rows
    }


def _because(verdict: Verdict) -> tuple[str, ...]:
    """Returns the reasons of a ``cannot tell``; the table's caption explains other outcomes."""
    return verdict.reasons if verdict.outcome is Outcome.CANNOT_TELL else ()


def _verdicts(result: Result) -> list[_Verdicts]:
    found: dict[str, list[Judgment]] = {}
    for each in result.judgments:
        found.setdefault(each.against, []).append(each)
    groups = []
    for against, judgments in found.items():
        reasons = [_because(each.verdict) for each in judgments]
        shared = [text for text in reasons[0] if all(text in own for own in reasons)]
        rows = [
            (each, "; ".join(text for text in own if text not in shared))
            for each, own in zip(judgments, reasons, strict=True)
        ]
        groups.append(_Verdicts(against, "; ".join(shared), tuple(rows)))
    return groups


def _facts(result: Result) -> dict[str, str]:
    """Returns the facts on machine, software and workload."""
    fingerprint = result.fingerprint
    state = {} if not result.gpu_state else {"GPU at the end": result.gpu_state}
    ends = {"bundle": fingerprint["bundle"], "fingerprint": fingerprint["hash"]}
    return facts(fingerprint["machine"], state, fingerprint["software"], ends)
