"""Results on stdout: text, or one document with ``--json``."""

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vidc.plugins.errors import UnavailableError, printable

if TYPE_CHECKING:
    from vidc.compiler.config.resolve import Settings
    from vidc.compiler.store.plan import PlanRow

WIDTH = 100
"""Characters of a line of a plan."""
NARROWEST = 24
"""Smallest width in characters that a column is wrapped to."""
COLORS = {
    "green": ("passed", "good", "HIT", "faster"),
    "yellow": ("warning", "missing", "MISS", "STALE", "UNKNOWN"),
    "red": ("FAILED", "broken", "slower"),
}
_STATUS = re.compile(
    rf"(?:(?<=  )|^)({'|'.join(word for words in COLORS.values() for word in words)})(?=  |$)", re.M
)
"""A status that fills a cell of a table."""

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Adds ``--json``, passed on as ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
    )(command)


def print_json(document: Mapping[str, Any], schema: int = 1) -> None:
    """Prints a result as JSON with its ``schema`` number; raises ValueError on NaN and Inf."""
    print_text(
        json.dumps({"schema": schema, **document}, indent=2, ensure_ascii=False, allow_nan=False)
    )


def print_text(text: str) -> None:
    """Prints a result.

    If the reader is gone (``vidc ... | head -1``) or stdout is closed (``vidc ... >&-``), the rest
    of the output is dropped and the command still ends with its own exit code.

    Raises:
        UnavailableError: ``VIDC-CLI-STDOUT``, stdout cannot be written, as on a full disk.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(f"{_colored(printable(text))}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        raise UnavailableError(
            "VIDC-CLI-STDOUT",
            f"results cannot be written to stdout: {error.strerror}",
            "write them to a disk that has room",
        ) from error


def _drop_stdout() -> None:
    """Drops everything that is written to stdout from here on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _colored(text: str) -> str:
    """Colors the statuses of a table if stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    colors = {word: color for color, words in COLORS.items() for word in words}
    return _STATUS.sub(lambda found: click.style(found[1], fg=colors[found[1]]), text)


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Returns rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def fitted(rows: Sequence[tuple[str, ...]], width: int = WIDTH) -> str:
    """Returns rows as text with aligned columns, the widest column wrapped to fit the width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widest = widths.index(max(widths))
    rest = sum(widths) - widths[widest] + 2 * (len(widths) - 1)
    wrap = textwrap.TextWrapper(max(width - rest, NARROWEST), break_on_hyphens=False).wrap
    lines = []
    for row in rows:
        first, *more = wrap(row[widest]) or [""]
        lines.append((*row[:widest], first, *row[widest + 1 :]))
        lines += [tuple("" if i != widest else line for i in range(len(row))) for line in more]
    return columns(lines)


def print_plan(
    settings: "Settings", rows: "Sequence[PlanRow]", as_json: bool, more: Mapping[str, Any]
) -> None:
    """Prints a plan; ``more`` goes into the JSON document alone."""
    values = settings.values()
    if as_json:
        print_json(
            {
                **more,
                "settings": {
                    name: {"value": value, "origin": settings.origins.get(name, "default")}
                    for name, value in values.items()
                },
                "stages": [
                    {
                        "stage": row.stage,
                        "status": row.status.value,
                        "key": row.key,
                        "reasons": list(row.reasons),
                    }
                    for row in rows
                ],
            }
        )
        return
    print_text(
        fitted(
            [
                (name, str(value), settings.origins.get(name, "default"))
                for name, value in values.items()
            ]
        )
    )
    print_text("")
    print_text(fitted([(row.stage, row.status.value, "; ".join(row.reasons)) for row in rows]))


def why_not_beside(file: Path, bundle: Path) -> str | None:
    """Returns why a file about a bundle cannot be written, or None."""
    if file.resolve().is_relative_to(bundle.resolve()):
        return "a bundle stays as it was published"
    return why_not_writable(file)


def why_not_writable(file: Path) -> str | None:
    """Returns why a file cannot be written, or None; called before minutes of work."""
    if file.is_dir():
        return "it is a folder"
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return "no permission"
    return None
