"""Progress of a build on stderr: live bars on a terminal, one line for each stage elsewhere."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from vidc.compiler.store.run import Progress
from vidc.plugins.errors import printable


@contextmanager
def stage_progress(stages: int) -> Iterator[Progress]:
    """Yields the progress of a build with ``stages`` stages: bars on a terminal, else lines."""
    if not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        yield LineProgress()
        return
    from vidc.compiler.cli.terminal import TerminalProgress

    progress = TerminalProgress(stages)
    with progress.live:
        yield progress


class LineProgress:
    """One line for each finished stage."""

    def started(self, stage: str) -> None:
        """Writes nothing: the line comes when the stage is done."""

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """Writes that the stage was cached, or how long it took."""
        click.echo(f"{stage}: {'cached' if hit else f'{seconds:.1f} s'}", err=True)

    def note(self, text: str) -> None:
        """Writes a line of its own."""
        click.echo(printable(text), err=True)
