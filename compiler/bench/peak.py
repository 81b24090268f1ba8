"""The most memory that a process had."""

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """Of this process, in bytes.

    On Linux ``ru_maxrss`` is no less than what the process had that started this one: it outlives
    ``exec``. The kernel's high-water mark of the memory itself does not.
    """
    if _STATUS.exists():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
        if found is not None:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)
