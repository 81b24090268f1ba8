"""`vidc bench`: measures a bundle."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.compiler.cli.group import PATH, Command, bundle_argument
from vidc.compiler.cli.output import (
    columns,
    json_option,
    print_json,
    print_text,
    why_not_beside,
)
from vidc.plugins.errors import GateError, UsageError

if TYPE_CHECKING:
    from vidc.compiler.bench.record import Result


def _names(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in value.split(",") if name))


@click.command(cls=Command)
@bundle_argument
@click.option(
    "--against", default="", callback=_names, metavar="NAMES",
    help="Baselines to measure in turn with the bundle: eager, compile or eager,compile.",
)  # fmt: skip
@click.option("--compare", type=PATH, metavar="RESULT.json", help="Result of an earlier run.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=20, show_default=True,
    help="Warm-up rounds of each kind.",
)  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=1), default=100, show_default=True,
    help="Samples of each metric.",
)  # fmt: skip
@click.option(
    "--cold-starts", type=click.IntRange(min=0), default=3, show_default=True,
    help="Processes that load the bundle and generate a first block.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--decoder", metavar="NAME",
    help="Decoder, for a bundle that has several; `vidc inspect` lists them.  [default: the first]",
)  # fmt: skip
@click.option(
    "--profile", is_flag=True, help="Profile components and kernels against the device's peaks."
)
@click.option(
    "--sweep", "swept", metavar="KEY=VALUES",
    help="Build and measure variants too, such as --sweep window=6,9,12.",
)  # fmt: skip
@click.option(
    "--report", type=PATH,
    help="HTML report; the result goes beside it as .json.  [default: BUNDLE.bench.html]",
)  # fmt: skip
@json_option
def command(
    bundle: Path,
    against: tuple[str, ...],
    compare: Path | None,
    warmup: int,
    samples: int,
    cold_starts: int,
    seed: int,
    decoder: str | None,
    profile: bool,
    swept: str | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Measure a bundle.

    Reports latency, throughput, memory and cold starts with intervals and raw samples, and verdicts
    against baselines or an earlier result. Exits 1 if a metric is slower than in that result.
    """
    from vidc.compiler.bench.measure import Protocol
    from vidc.compiler.bench.metrics import Decoding
    from vidc.compiler.bench.record import SCHEMA, Stored
    from vidc.compiler.bench.report import render_html
    from vidc.compiler.bench.run import Request, bench
    from vidc.compiler.bench.streams import read_bundle, require_baselines
    from vidc.compiler.bench.sweep import Dimension
    from vidc.compiler.cli.progress import LineProgress
    from vidc.exporters.families import find_family
    from vidc.runtime.program import program

    # Refuses invalid requests before minutes of work.
    manifest = read_bundle(bundle, decoder)
    family = find_family(manifest.family)
    decoding = Decoding(*program(manifest.program).decoder_names)
    if against:
        require_baselines(against)
    page = report or bundle.absolute().with_name(f"{bundle.absolute().name}.bench.html")
    if not page.name:
        raise _no_place(page, "it is a folder")
    kept = page.with_suffix(".json")
    _require_places(page, kept, compare, bundle)
    stored = None if compare is None else Stored.read(compare, decoding.metrics)
    dimension = None if swept is None else Dimension.parse(swept, family)
    protocol = Protocol(warmup, samples, seed)
    request = Request(bundle, against, stored, protocol, cold_starts, profile, dimension, decoder)
    with ExitStack() as stack:
        result = bench(request, LineProgress(), _Bar(request.rounds(manifest.spec), stack).tick)
    document = result.to_json()
    if as_json:
        print_json({**document, "report": str(page)}, SCHEMA)
    else:
        print_text(_text(result))
    _write(page, render_html(result))
    _write(kept, json.dumps({"schema": SCHEMA, **document}, indent=1, allow_nan=False) + "\n")
    if not as_json:
        print_text(f"report: {page}\nsamples: {kept}")
    _require_no_regression(result, page)


class _Bar:
    """Progress bar that appears with the first round; ``stack`` ends it."""

    def __init__(self, rounds: int, stack: ExitStack) -> None:
        self._rounds = rounds
        self._stack = stack
        self._bar: Any = None

    def tick(self) -> None:
        """Counts one round."""
        if self._bar is None:
            bar = click.progressbar(length=self._rounds, label="rounds", file=sys.stderr)
            self._bar = self._stack.enter_context(bar)
        self._bar.update(1)


def _text(result: "Result") -> str:
    from vidc.compiler.bench.statistics import Summary
    from vidc.compiler.bench.text import figure, interval

    rows: list[tuple[str, ...]] = [
        ("figure", "stream", "median", "95 % interval", "mean", "p99", "max", "n")
    ]
    for name, metric in result.metrics.items():
        for stream, samples in result.streams.items():
            if name in samples:
                found = Summary.of(samples[name])
                tail = (found.p99, found.max) if metric.tail_is_bad else (None, None)
                shown = (figure(v, metric.unit) for v in (found.mean, *tail))
                rows.append(
                    (
                        metric.title,
                        stream,
                        figure(found.median, metric.unit),
                        interval(found.ci95, metric.unit),
                        *shown,
                        str(found.n),
                    )
                )
    verdicts: list[tuple[str, ...]] = [
        (
            f"against {each.against}",
            result.metrics[each.metric].title,
            str(each.verdict.outcome),
            f"{each.verdict.speedup:.3f}x",
            "; ".join(each.verdict.reasons),
        )
        for each in result.judgments
    ]
    tables = [rows, verdicts, *_profile_tables(result), _sweep_table(result)]
    shown = (columns(table) for table in tables if table)
    banner = [] if result.banner is None else [result.banner]
    return "\n\n".join([*banner, *shown, *result.notes, *banner])


def _profile_tables(result: "Result") -> list[list[tuple[str, ...]]]:
    from vidc.compiler.bench.text import figure, rate

    if result.profile is None:
        return []
    components: list[tuple[str, ...]] = [
        ("component", "a block", "median", "TFLOP", "TFLOP/s", "of peak", "GB", "GB/s", "of peak")
    ]
    components += [
        (
            row.component,
            str(row.calls),
            figure(row.ms.median, "ms"),
            f"{row.tflop:.3g}",
            *rate(row.tflops),
            f"{row.gigabytes:.3g}",
            *rate(row.gbps),
        )
        for row in result.profile.components
    ]
    kinds: list[tuple[str, ...]] = [("phase", "kernels", "time", "TFLOP/s", "of peak")]
    kinds += [
        (row.phase, row.kind.value, figure(row.ms, "ms"), *rate(row.tflops))
        for row in result.profile.kinds
    ]
    notes: list[tuple[str, ...]] = [(text,) for text in result.profile.notes]
    return [components, kinds, notes]


def _sweep_table(result: "Result") -> list[tuple[str, ...]]:
    from vidc.compiler.bench.statistics import Summary
    from vidc.compiler.bench.streams import OURS
    from vidc.compiler.bench.text import change, figure

    if result.sweep is None:
        return []
    named = {"block_ms": "block", result.decoding.metric: result.decoding.title}
    if "switch_ms" in result.streams[OURS]:
        named["switch_ms"] = "switch"
    titles = (text for title in named.values() for text in (title, ""))
    rows: list[tuple[str, ...]] = [(result.sweep.key, *titles, "relative L2", "PSNR (dB)", "SSIM")]
    for row in result.sweep.rows:
        timed = [
            text
            for name in named
            for text in (
                figure(Summary.of(row.samples[name]).median, "ms"),
                f"{row.verdicts[name].outcome} {row.verdicts[name].speedup:.3f}x",
            )
        ]
        rows.append((row.value, *timed, *change(row.change)))
    return rows


def _require_places(page: Path, kept: Path, compare: Path | None, bundle: Path) -> None:
    for file in (page, kept):
        if (why := why_not_beside(file, bundle)) is not None:
            raise _no_place(file, why)
    if kept == page:
        raise _no_place(page, "the result takes that name with .json")
    if compare is not None and kept.exists() and compare.exists() and kept.samefile(compare):
        raise _no_place(kept, "it is the result to compare with, and would be lost")


def _no_place(file: Path, why: str) -> UsageError:
    return UsageError(
        "VIDC-BENCH-REPORT",
        f"{file} cannot be written: {why}",
        "name another file with --report, such as new.html",
    )


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _no_place(file, str(error.strerror)) from error


def _require_no_regression(result: "Result", page: Path) -> None:
    slower = [f"{each.metric} {each.verdict.speedup:.3f}x" for each in result.regressions]
    if slower:
        raise GateError(
            "VIDC-BENCH-SLOWER",
            f"{result.bundle} is slower than {result.regressions[0].against}: {', '.join(slower)}",
            f"open {page}; measure again if the machine was busy",
        )
