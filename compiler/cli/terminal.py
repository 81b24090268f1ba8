"""Progress of a build on a terminal, drawn by rich."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vidc.plugins.errors import printable


class TerminalProgress:
    """A bar of finished stages, and below it a line with the time of each running stage.

    Args:
        stages: number of stages.

    Attributes:
        live: context manager that draws the bars; enter it before the build.
    """

    def __init__(self, stages: int) -> None:
        self.live = Progress(
            BarColumn(30),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            refresh_per_second=2,
            redirect_stdout=False,  # Only results go to stdout.
        )
        self._stages = stages
        self._finished = 0
        self._build = self.live.add_task(f"0/{stages}", total=stages)
        self._running: dict[str, TaskID] = {}

    def started(self, stage: str) -> None:
        """Adds the stage's line with a pulsing bar."""
        self._running[stage] = self.live.add_task(stage, total=None)

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """Moves the build's bar on and removes the stage's line, if it had one."""
        if stage in self._running:
            self.live.remove_task(self._running.pop(stage))
        self._finished += 1
        count = f"{self._finished}/{self._stages}"
        self.live.update(self._build, advance=1, description=count, refresh=True)

    def note(self, text: str) -> None:
        """Writes a line above the bars."""
        self.live.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
