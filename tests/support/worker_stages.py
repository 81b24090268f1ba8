"""Stages that worker processes can import."""

import os
import time

from vidc.compiler.pipeline.stage import Workspace
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
