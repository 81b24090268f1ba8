"""CPU time that other processes take, and the peak memory of this one."""

import os
import re
import resource
import sys
import time
from pathlib import Path

MAX_SHARE = 0.1
"""CPU share of other processes, 0 to 1, above which CPU timings are not trusted."""
_STAT = Path("/proc/stat")
_IDLE = (3, 4)
_GUEST = 8
"""First guest column of ``/proc/stat``; user time already includes guest time."""


class Disturbance:
    """Measures the CPU time that other processes take from its construction on."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._busy = _busy()
        self._own = _own()

    def share(self) -> float | None:
        """Returns the CPU share of other processes, 0 to 1 of all cores; None if unknown."""
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
    """Returns busy seconds of all cores since boot; None if unknown."""
    try:
        columns = _STAT.read_text().partition("\n")[0].split()[1:]
        ticks = [int(column) for column in columns[:_GUEST]]
    except (OSError, ValueError):
        return None
    worked = sum(count for column, count in enumerate(ticks) if column not in _IDLE)
    return worked / os.sysconf("SC_CLK_TCK")


_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """Returns the peak resident memory of this process in bytes.

    On Linux, ``ru_maxrss`` survives ``exec`` and thus includes the parent's peak. The kernel's
    high-water mark ``VmHWM`` does not.
    """
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)
