"""How a build gets on, on stderr: a bar on a terminal, a line a stage elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

import click

from vidc.compiler.store.run import Progress

BAR_WIDTH = 30
ERASE = "\r\x1b[K"


@contextmanager
def stage_progress(stages: int) -> Iterator[Progress]:
    """The progress of a build of this many stages, for the stderr there is.

    On a terminal the bar's line is ended when the context is left, however it is left.
    """
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    bar = BarProgress(stages)
    try:
        yield bar
    finally:
        bar.close()


class LineProgress:
    """One line for each finished stage."""

    def started(self, stage: str) -> None:
        """Nothing: the line comes when the stage is done."""

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """Says whether the stage was cached, or how long it took."""
        click.echo(f"{stage}: {'cached' if hit else f'{seconds:.1f} s'}", err=True)

    def note(self, text: str) -> None:
        """A line of its own."""
        click.echo(text, err=True)


class BarProgress:
    """A bar of finished stages with the name of the running one, on the terminal's last line."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._finished = 0
        self._running = ""

    def started(self, stage: str) -> None:
        """Shows the stage beside the bar."""
        self._running = stage
        self._draw()

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """Moves the bar on."""
        self._finished += 1
        self._draw()

    def note(self, text: str) -> None:
        """A line above the bar."""
        sys.stderr.write(f"{ERASE}{text}\n")
        self._draw()

    def close(self) -> None:
        """Ends the bar's line."""
        sys.stderr.write("\n")

    def _draw(self) -> None:
        done = BAR_WIDTH * self._finished // self._stages
        bar = "#" * done + "-" * (BAR_WIDTH - done)
        line = f"[{bar}] {self._finished}/{self._stages} {self._running}"
        # A line that wraps could not be erased.
        sys.stderr.write(ERASE + line[: get_terminal_size().columns - 1])
        sys.stderr.flush()
