"""Stages that stand for ones on a device: they write when, and in which process, they ran."""

import os
import signal
import time
from pathlib import Path

from vidc.compiler.store.stage import Workspace


def occupy(
    workspace: Workspace, seconds: float = 0.0, until: Path | None = None, told: Path | None = None
) -> None:
    """Tells that it runs by the file ``told``, then waits, for the file ``until`` as well."""
    started = time.monotonic()
    if told is not None:
        told.touch()
    time.sleep(seconds)
    while until is not None and not until.exists():
        if time.monotonic() - started > 60:
            raise TimeoutError(f"{until.name} did not run")
        time.sleep(0.02)
    (workspace.output / "ran").write_text(f"{started} {time.monotonic()} {os.getpid()}")


def crash(workspace: Workspace, until: Path | None = None) -> None:
    """Ends the process as a fault in native code does, once the file ``until`` is there."""
    while until is not None and not until.exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
