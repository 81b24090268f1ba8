"""Shell completion of the names that vidc knows."""

from collections.abc import Callable, Mapping

import click
from click.shell_completion import CompletionItem

from vidc.compiler import backends
from vidc.compiler.config.schema import PRECISIONS
from vidc.compiler.config.targets import AUTO
from vidc.compiler.config.toml import read_toml, shipped

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(names: Callable[[], Mapping[str, str]], *, or_file: bool = False) -> Complete:
    """Returns a ``shell_complete`` for click that offers names and ignores upper and lower case.

    Args:
        names: makes the known names, each with a line of help; called when a shell asks.
        or_file: lets the shell offer files if no name fits.
    """

    def items(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        start = incomplete.lower()
        known = names().items()
        found = [CompletionItem(n, help=text) for n, text in known if n.lower().startswith(start)]
        return found or ([CompletionItem(incomplete, type="file")] if or_file else [])

    return items


def _described(folder: str) -> dict[str, str]:
    """Returns the names of ``configs/<folder>`` with their descriptions."""
    return {name: read_toml(file).get("description", "") for name, file in shipped(folder).items()}


PRESET = complete(lambda: _described("presets"), or_file=True)
RECIPE = complete(lambda: _described("recipes"), or_file=True)
TARGET = complete(lambda: _described("targets"))
GPU = complete(lambda: _described("targets") | {AUTO: "What this machine has"})
PRECISION = complete(lambda: dict.fromkeys(PRECISIONS, ""))
BACKEND = complete(lambda: dict.fromkeys(backends.names(), ""))
