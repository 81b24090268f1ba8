"""Runs Polygraphy's command line as a user would."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run(command: Sequence[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs a command, which may run others, with the tools of this Python.

    Args:
        command: its words, ``polygraphy`` first.
        folder: where it runs and writes.
        environ: further variables of its environment.
    """
    tools = Path(sys.executable).parent
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(tools / command[0]), *command[1:]], env={**os.environ, "PATH": path, **environ},
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
