"""Stages that worker processes can import, and a build that is slow enough to interrupt."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

from function_stage import FunctionStage

from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store.run import run, working
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


class StubbornError(Exception):
    """Does not survive pickling: it takes two arguments and keeps one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")


def fail_stubbornly(workspace: Workspace) -> None:
    raise StubbornError("a kernel", "no registers")


def _tell(pid: int) -> None:
    Path(os.environ["WORKERS_STARTED"], str(pid)).touch()


def sleep_long(workspace: Workspace) -> None:
    lock = get_context("spawn").Lock()  # As tqdm makes one.
    assert lock
    (workspace.output / "half").write_text("written")
    _tell(os.getpid())
    time.sleep(60)


def compile_long(workspace: Workspace) -> None:
    """Waits for a compiler that has a process of its own, as g++ has cc1plus."""
    driver = ["/bin/sh", "-c", 'sleep 60 & touch "$WORKERS_STARTED/$!"; wait']
    _tell(os.getpid())
    subprocess.run(driver, check=True)


def hang(workspace: Workspace) -> None:
    """Does not end when it is interrupted."""
    (workspace.output / "half").write_text("written")
    _tell(os.getpid())
    while True:
        try:
            time.sleep(60)
        except SystemExit:
            continue


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Under nohup it is ignored.
    with Store(Path(sys.argv[1])) as store, working(store, 2) as pool:
        works = enumerate(sys.argv[2:])
        slow = [FunctionStage(f"stage{index}", globals()[work]) for index, work in works]
        run(slow, store, "slot", LineProgress(), pool)
