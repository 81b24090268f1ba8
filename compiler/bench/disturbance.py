"""How much of the machine's CPU other processes took while something was measured."""

import os
import time
from pathlib import Path

MOST = 0.1
"""Share of all cores from which what a CPU took is no longer its own doing."""
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
_GUEST = 8
"""Columns of ``/proc/stat`` from which on time counts that is counted as user time before."""


class Disturbance:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._busy = _busy()
        self._own = _own()

    def share(self) -> float | None:
        """What others took since, as a share of all cores: 0 to 1. None where nothing tells."""
        busy = _busy()
        if busy is None or self._busy is None:
            return None
        seconds = (time.perf_counter() - self._started) * (os.cpu_count() or 1)
        others = busy - self._busy - (_own() - self._own)
        return min(max(others / seconds, 0.0), 1.0) if seconds > 0 else 0.0


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _busy() -> float | None:
    """Seconds that all cores together have worked since the machine started."""
    try:
        columns = _STAT.read_text().partition("\n")[0].split()[1:]
        ticks = [int(column) for column in columns[:_GUEST]]
    except (OSError, ValueError):
        return None
    worked = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
    return worked / os.sysconf("SC_CLK_TCK")
