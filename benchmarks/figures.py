"""Keeps the figures of README and docs: medians of committed raw samples, and tables made of them.

    python benchmarks/figures.py add block_bf16_ms --unit ms \\
      --samples benchmarks/results/longlive-1.3b-h100-bf16-2026-11-26.json /metrics/block_ms/samples
    python benchmarks/figures.py write

``add`` computes an entry of ``benchmarks/results/summary.json`` and writes the tables; ``write``
only writes the tables. A table is a template, ``benchmarks/tables/NAME.md``. Its text stands in a
document between ``<!-- table NAME -->`` and ``<!-- end of NAME -->``.

``--samples`` takes a JSON file and a JSON pointer (RFC 6901) to a number or a list of numbers; the
key ``*`` takes every entry of a list. ``--over`` makes the figure a ratio of medians: those of
``--samples`` over those at this second pointer.
"""

import argparse
import json
import math
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.verdict import judge

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = 1
SUMMARY = "benchmarks/results/summary.json"
TEMPLATES = "benchmarks/tables"
DOCUMENTS = ("README.md", "docs/**/*.md", "benchmarks/**/README.md")
TABLE = re.compile(r"(<!-- table (\S+) -->\n)(.*?)(<!-- end of \2 -->\n)", re.DOTALL)


@dataclass(frozen=True)
class Figure:
    """A measured figure and the place of its samples.

    Attributes:
        median: of the samples, or the ratio of two medians, times ``factor``.
        ci95: 95 % bootstrap interval of the median, None below 6 samples.
        n: number of samples; of a ratio, the smaller number.
        unit: unit of the median.
        machine: GPU or CPU that was measured.
        date: day of the measurement, ISO 8601.
        commit: commit of vidc that was measured; where the samples do not name it, the commit that
            added them.
        samples: JSON file of the samples, relative to the repository's root.
        pointer: JSON pointer to the samples in the file.
        over: JSON pointer to the samples that a ratio divides by, None if it is no ratio.
        factor: from the samples' unit to ``unit``.
    """

    median: float
    ci95: tuple[float, float] | None
    n: int
    unit: str
    machine: str
    date: str
    commit: str
    samples: str
    pointer: str
    over: str | None = None
    factor: float = 1.0

    @classmethod
    def of(
        cls,
        root: Path,
        *,
        unit: str,
        machine: str | None,
        date: str,
        commit: str | None,
        samples: str,
        pointer: str,
        over: str | None = None,
        factor: float = 1.0,
    ) -> Self:
        """Computes a figure from its samples.

        Machine and commit are read from the file. The arguments stand for what it does not name.

        Raises:
            ValueError: there are no finite samples, the factor is not a finite one above 0, the
                file names another machine or commit, or neither file nor argument names one.
        """
        if not 0 < factor < math.inf:
            raise ValueError(f"factor {factor}: expected a finite number above 0")
        document = json.loads((root / samples).read_text())
        values = samples_at(document, pointer)
        machine = _agreed("machine", recorded_machine(document, pointer), machine, samples)
        if over is None:
            summary = Summary.of(values)
            median, ci95, n = summary.median, summary.ci95, summary.n
        else:
            below = samples_at(document, over)
            _agreed("machine", recorded_machine(document, over), machine, samples)
            verdict = judge(below, values)
            median, ci95, n = verdict.speedup, verdict.speedup_ci95, min(len(values), len(below))
        return cls(
            median=median * factor,
            ci95=None if ci95 is None else (ci95[0] * factor, ci95[1] * factor),
            n=n,
            unit=unit,
            machine=machine,
            date=date,
            commit=_agreed("commit", recorded_commit(document, pointer), commit, samples),
            samples=samples,
            pointer=pointer,
            over=over,
            factor=factor,
        )

    def recomputed(self, root: Path) -> "Figure":
        """Returns the figure computed once more from the same samples; raises as ``of``."""
        computed = {"median", "ci95", "n"}
        return Figure.of(root, **{k: v for k, v in asdict(self).items() if k not in computed})


class Cell:
    """A figure as templates refer to it.

    ``{name:.1f}`` is the median, ``{name.interval:.1f}`` the median with its interval or number of
    samples, ``{name.date}``, ``{name.n}`` and ``{name.machine}`` are fields, and ``{name.link}`` is
    the path of the samples from the document.
    """

    def __init__(self, figure: Figure, root: Path, document: Path) -> None:
        self.date, self.n, self.machine = figure.date, figure.n, figure.machine
        self.link = os.path.relpath(root / figure.samples, document.parent)
        self._figure = figure

    def __format__(self, spec: str) -> str:
        return format(self._figure.median, spec)

    @cached_property
    def interval(self) -> "Interval":
        """Median and interval."""
        return Interval(self._figure)


class Interval:
    """Formats a median with its interval, such as ``252.8 ms [251.8, 254.4]``."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    def __format__(self, spec: str) -> str:
        figure = self._figure
        unit = "" if figure.unit == "x" else f" {figure.unit}"
        median = f"{figure.median:{spec}}{unit}"
        if figure.ci95 is None:
            return f"{median} (n = {figure.n})"
        low, high = (format(end, spec) for end in figure.ci95)
        return f"{median} [{low}, {high}]"


def samples_at(document: Any, pointer: str) -> list[float]:
    """Returns the numbers at a JSON pointer; the key ``*`` takes every entry of a list.

    Raises:
        ValueError: there is nothing, or something other than numbers.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"{pointer} is no JSON pointer: it must begin with /")
    found = [document]
    for key in pointer.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        try:
            found = [inner for value in found for inner in _entries(value, key)]
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"nothing at {pointer}: no entry {key!r}") from error
    values = [
        number for value in found for number in (value if isinstance(value, list) else [value])
    ]
    if not values or any(type(value) not in (int, float) for value in values):
        raise ValueError(f"{pointer} holds no numbers")
    return [float(value) for value in values]


def read_summary(root: Path) -> dict[str, Figure]:
    """Returns the figures by name.

    Raises:
        ValueError: another schema.
        TypeError: an entry has a field too many or too few.
    """
    document = json.loads((root / SUMMARY).read_text())
    if document["schema"] != SCHEMA:
        raise ValueError(f"{SUMMARY} has schema {document['schema']!r}, not {SCHEMA}")
    return {name: _figure(entry) for name, entry in document["figures"].items()}


def write_summary(root: Path, figures: Mapping[str, Figure]) -> None:
    """Writes the figures, sorted by name, without fields that have their default."""
    defaults = {"over": None, "factor": 1.0}
    entries = {
        name: {k: v for k, v in asdict(figure).items() if k not in defaults or v != defaults[k]}
        for name, figure in sorted(figures.items())
    }
    document = {"schema": SCHEMA, "figures": entries}
    (root / SUMMARY).write_text(json.dumps(document, indent=1) + "\n")


def stale_figures(root: Path) -> list[str]:
    """Returns a sentence for each entry that its samples do not give."""
    problems = []
    for name, figure in read_summary(root).items():
        try:
            computed = figure.recomputed(root)
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error}")
            continue
        if computed != figure:
            problems.append(f"{name} is {figure}, its samples give {computed}")
    return problems


def tables(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yields each document with tables, its text, and its text with the tables written anew.

    Raises:
        ValueError: a template is missing or names an unknown figure, a marker has no end, or no
            document has a template's table.
    """
    figures, used = read_summary(root), set()
    for document in sorted({path for pattern in DOCUMENTS for path in root.glob(pattern)}):
        text = document.read_text()
        cells = {name: Cell(figure, root, document) for name, figure in figures.items()}
        found = [match[2] for match in TABLE.finditer(text)]
        if len(found) != text.count("<!-- table "):
            raise ValueError(f"{document}: a table's marker has no end")
        if found:
            used.update(found)
            yield document, text, TABLE.sub(partial(_rendered, root, cells), text)
    templates = {path.stem for path in (root / TEMPLATES).glob("*.md")}
    if templates != used:
        raise ValueError(f"templates without a document: {sorted(templates - used)}")


def write_tables(root: Path) -> list[Path]:
    """Writes all tables and returns the documents that changed; raises as ``tables``."""
    changed = [(document, new) for document, old, new in tables(root) if old != new]
    for document, text in changed:
        document.write_text(text)
    return [document for document, _ in changed]


def recorded_machine(document: Any, pointer: str) -> str | None:
    """Returns the GPU, or the CPU and its cores, of the samples' fingerprint; None without one."""
    machine = _fingerprint(document, pointer).get("machine")
    if machine is None:
        return None
    if machine["gpu"] is None:
        return f"{machine['cpu']}, {machine['cores']} cores"
    return str(machine["gpu"]["name"])


def recorded_commit(document: Any, pointer: str) -> str | None:
    """Returns the commit of the samples' fingerprint, None without one."""
    commit: str | None = _fingerprint(document, pointer).get("software", {}).get("commit")
    return commit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write the tables")
    add = commands.add_parser("add", help="add or replace a figure, then write the tables")
    add.add_argument("name")
    add.add_argument("--samples", nargs=2, metavar=("FILE", "POINTER"), required=True)
    add.add_argument("--over", metavar="POINTER", help="divide by the median of these samples")
    add.add_argument("--unit", required=True, help="such as ms, GB, dB, frames/s; x for a ratio")
    add.add_argument("--factor", type=float, default=1.0, help="from the samples' unit to --unit")
    add.add_argument("--date", default=date.today().isoformat(), help="day of the measurement")
    add.add_argument("--machine", help="needed where the file has no fingerprint")
    add.add_argument("--commit", help="of the measured code, where the file does not name it")
    options = parser.parse_args()
    try:
        if options.command == "add":
            _add(ROOT, options)
        for document in write_tables(ROOT):
            print(f"wrote {document.relative_to(ROOT)}")
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _add(root: Path, options: argparse.Namespace) -> None:
    file = Path(options.samples[0]).resolve()
    document, pointer = json.loads(file.read_text()), options.samples[1]
    samples_at(document, pointer)  # Refuses a wrong pointer before anything else reads it.
    commit = options.commit
    if commit is None and recorded_commit(document, pointer) is None:
        head = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(head, cwd=root, check=True, capture_output=True, text=True).stdout
    figure = Figure.of(
        root,
        unit=options.unit,
        machine=options.machine,
        date=date.fromisoformat(options.date).isoformat(),
        commit=commit and commit.strip(),
        samples=file.relative_to(root).as_posix(),
        pointer=pointer,
        over=options.over,
        factor=options.factor,
    )
    write_summary(root, read_summary(root) | {options.name: figure})
    print(f"{options.name} {Interval(figure):.4g}")


def _figure(entry: dict[str, Any]) -> Figure:
    ci95 = entry["ci95"]
    return Figure(**{**entry, "ci95": None if ci95 is None else tuple(ci95)})


def _agreed(what: str, recorded: str | None, given: str | None, file: str) -> str:
    if recorded is None and given is None:
        raise ValueError(f"{file} names no {what}: give --{what}")
    if recorded is not None and given is not None and recorded != given:
        raise ValueError(f"{file} was measured with {what} {recorded!r}, not {given!r}")
    return recorded or given or ""


def _entries(value: Any, key: str) -> list[Any]:
    if isinstance(value, list):
        if key == "*":
            return value
        if key != str(abs(int(key))):
            raise ValueError(f"{key} is no index of a list")
        return [value[int(key)]]
    return [value[key]]


def _fingerprint(document: Any, pointer: str) -> dict[str, Any]:
    """Returns the fingerprint nearest to the samples, an empty one if none is on their way."""
    found: dict[str, Any] = {}
    for key in ["", *pointer.split("/")[1:]]:
        if key == "*":
            break
        document = _entries(document, key)[0] if key else document
        if isinstance(document, dict):
            found = document.get("fingerprint", found)
    return found


def _rendered(root: Path, cells: Mapping[str, Cell], match: re.Match[str]) -> str:
    start, name, _, end = match.groups()
    template = root / TEMPLATES / f"{name}.md"
    if not template.exists():
        raise ValueError(f"there is no template {template}")
    try:
        return start + template.read_text().format_map(cells) + end
    except KeyError as error:
        raise ValueError(f"{template}: {SUMMARY} has no figure {error}") from error


if __name__ == "__main__":
    main()
