"""The report of a benchmark as one HTML page that needs nothing but itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.compiler.bench.figures import change, figure, interval, plain, rate
from vidc.compiler.bench.metrics import METRICS
from vidc.compiler.bench.plots import Bars, Histogram, Timeline, bars, histogram, timeline
from vidc.compiler.bench.record import DISCIPLINE, Result
from vidc.compiler.bench.statistics import LEAST_FOR_INTERVAL, LEAST_FOR_P99, Summary
from vidc.compiler.bench.streams import OURS
from vidc.compiler.bench.sweep import Sweep
from vidc.compiler.bench.verdict import Verdict
from vidc.compiler.page.render import render

HEADLINES = ("block_ms", "vae_ms", "stream_video_fps", "switch_ms", "switch_block_ms",
             "cold_start_s", "peak_rss_bytes", "device_bytes")  # fmt: skip
KERNELS_SHOWN = 12
SWEPT = ("block_ms", "vae_ms", "stream_ms", "switch_ms")
TIMELINES = ("block_ms", "stream_ms", "switch_block_ms")


@dataclass(frozen=True)
class _Row:
    """One stream's figures of one metric."""

    stream: str
    summary: Summary


@dataclass(frozen=True)
class _Drawing:
    """A metric that is drawn: over time, and each stream's distribution."""

    metric: str
    title: str
    timeline: Timeline
    histograms: tuple[Histogram, ...]


def render_html(result: Result) -> str:
    """The page, with styles and drawings inside; every text of the result is escaped."""
    rows = {name: _rows(result, name) for name in METRICS}
    return render(
        "vidc.compiler.bench/report.html.j2",
        {
            "change": change,
            "figure": figure,
            "plain": plain,
            "interval": interval,
            "text": _text,
            "rate": rate,
        },
        result=result,
        ours=OURS,
        metrics=METRICS,
        rows={name: found for name, found in rows.items() if found},
        headlines=[(name, rows[name][0].summary) for name in HEADLINES if _ours(rows[name])],
        drawings=[_drawing(result, name) for name in TIMELINES if rows[name]],
        comparisons=_comparisons(rows),
        colours=dict(zip(result.streams, ("one", "two", "three", "four"), strict=False)),
        discipline=DISCIPLINE,
        least_for_interval=LEAST_FOR_INTERVAL,
        least_for_p99=LEAST_FOR_P99,
        profile=result.profile,
        sweep=result.sweep,
        swept=None if result.sweep is None else _swept(result.sweep),
        kernels_shown=KERNELS_SHOWN,
        swept_metrics=SWEPT,
    )


def _rows(result: Result, metric: str) -> list[_Row]:
    return [
        _Row(stream, Summary.of(samples[metric]))
        for stream, samples in result.streams.items()
        if metric in samples
    ]


def _ours(rows: list[_Row]) -> bool:
    return bool(rows) and rows[0].stream == OURS


def _drawing(result: Result, metric: str) -> _Drawing:
    samples = {name: own[metric] for name, own in result.streams.items() if metric in own}
    histograms = (histogram(name, own, Summary.of(own)) for name, own in samples.items())
    return _Drawing(metric, METRICS[metric].title, timeline(samples), tuple(histograms))


def _swept(found: Sweep) -> dict[str, list[tuple[Summary, Verdict]]]:
    """For each value of a sweep, what is shown of its durations."""
    return {
        row.value: [(Summary.of(row.samples[name]), row.verdicts[name]) for name in SWEPT]
        for row in found.rows
    }


def _comparisons(rows: Mapping[str, list[_Row]]) -> dict[str, Bars]:
    """Bars of each judged figure that more than one stream has."""
    return {
        name: bars(
            {row.stream: row.summary for row in rows[name]},
            {row.stream: figure(row.summary.median, metric.unit) for row in rows[name]},
        )
        for name, metric in METRICS.items()
        if metric.judged and len(rows[name]) > 1
    }


def _text(value: Any) -> str:
    """A value of a table of plain JSON as a phrase."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if item)
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
