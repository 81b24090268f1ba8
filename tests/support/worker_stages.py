"""Stages that worker processes can import, and a build that is slow enough to interrupt."""

import os
import sys
import time
from pathlib import Path

from function_stage import FunctionStage

from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store.run import run
from vidc.compiler.store.stage import Workspace
from vidc.compiler.store.store import Store
from vidc.plugins.errors import BuildError


def write_pid(workspace: Workspace) -> None:
    workspace.note("writing")
    time.sleep(0.2)
    (workspace.output / "pid").write_text(str(os.getpid()))


def join(workspace: Workspace) -> None:
    pids = [(folder / "pid").read_text() for folder in workspace.inputs.values()]
    (workspace.output / "pids").write_text(" ".join(pids))


def fail(workspace: Workspace) -> None:
    raise BuildError("VIDC-TEST", "as planned", "nothing")


def sleep_long(workspace: Workspace) -> None:
    (workspace.output / "half").write_text("written")
    Path(os.environ["WORKERS_STARTED"], str(os.getpid())).touch()
    time.sleep(60)


if __name__ == "__main__":
    with Store(Path(sys.argv[1])) as store:
        slow = [FunctionStage(name, sleep_long) for name in ("one", "two")]
        run(slow, store, "slot", LineProgress(), workers=2)
