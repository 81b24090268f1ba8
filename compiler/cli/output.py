"""Results on stdout: text, or one document with ``--json``."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from vidc.plugins.errors import printable

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

    A reader that has gone away (``vidc ... | head -1``) changes nothing: the rest of stdout is
    dropped and the command ends with its own exit code.
    """
    try:
        sys.stdout.write(f"{printable(text)}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns(rows: list[tuple[str, ...]]) -> str:
    """Returns rows as text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def why_not_writable(file: Path) -> str | None:
    """Returns why a file cannot be written, or None; called before minutes of work."""
    if file.is_dir():
        return "it is a folder"
    if not file.parent.is_dir():
        return f"there is no folder {file.parent}"
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        return "no permission"
    return None
