"""Builds in processes of their own: at once, interrupted, killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import function_stage
import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from vidc.compiler.store.run import run
from vidc.compiler.store.stage import Input
from function_stage import FunctionStage
from vidc.compiler.store.store import Store

root, log, gate = (Path(word) for word in sys.argv[1:4])

class Progress:
    def started(self, stage): pass
    def finished(self, stage, hit, seconds): print(stage, "hit" if hit else "built", flush=True)
    def note(self, text): print(text, flush=True)

def load(workspace):
    with log.open("a") as file:
        file.write("load\\n")

def export(workspace):
    (workspace.output / "half").touch()
    with log.open("a") as file:
        file.write("export\\n")
    while not gate.exists():
        time.sleep(0.02)
    (workspace.output / "done").touch()

stages = [
    FunctionStage("load", load),
    FunctionStage("export", export, inputs=(Input("load"),)),
]
with Store(root) as store:
    run(stages, store, "slot", Progress())
    print("end", flush=True)
    sys.stdin.read()
"""


class Processes:
    """Starts builds of the same two stages; ``export`` ends when the gate opens."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.words = [folder / name for name in ("script.py", "store", "log", "gate")]
        self.words[1] = root
        self.words[0].write_text(SCRIPT)
        self.started: list[subprocess.Popen[str]] = []
        support = str(Path(function_stage.__file__).parent)
        self._environment = {**os.environ, "PYTHONPATH": support}

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *self.words],
            env=self._environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        self.started.append(process)
        return process

    def open_gate(self) -> None:
        self.words[3].touch()

    def runs(self) -> list[str]:
        return self.words[2].read_text().split() if self.words[2].exists() else []

    def wait_for_run(self, stage: str) -> None:
        deadline = time.monotonic() + 60
        while stage not in self.runs():
            assert time.monotonic() < deadline, f"{stage} did not start"
            time.sleep(0.02)


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def processes(tmp_path: Path, build: Any) -> Any:
    processes = Processes(tmp_path, build.root)
    yield processes
    for process in processes.started:
        process.kill()
        process.communicate()


def test_two_builds_of_the_same_thing_run_it_once(processes: Processes) -> None:
    first = processes.start()
    processes.wait_for_run("export")
    second = processes.start()
    assert next_line(second) == "load hit"
    assert next_line(second) == "export: waiting for another build of the same thing"
    processes.open_gate()
    # The first goes on holding its results, and does not keep the second from using them.
    assert [next_line(second) for _ in range(2)] == ["export hit", "end"]
    assert first.poll() is None
    assert [next_line(first) for _ in range(3)] == ["load built", "export built", "end"]
    assert processes.runs() == ["load", "export"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_resumes(processes: Processes, build: Any, sent: int) -> None:
    process = processes.start()
    processes.wait_for_run("export")
    process.send_signal(sent)
    _, stderr = process.communicate(timeout=60)
    assert ("KeyboardInterrupt" in stderr) == (sent == signal.SIGINT)
    assert not (build.root / "export").exists()
    assert len(build.leftovers()) == (0 if sent == signal.SIGINT else 1)

    processes.open_gate()
    again = processes.start()
    assert [next_line(again) for _ in range(3)] == ["load hit", "export built", "end"]
    assert processes.runs() == ["load", "export", "export"]
    assert build.leftovers() == []
    (output,) = build.root.glob("export/*/output")
    assert sorted(path.name for path in output.iterdir()) == ["done", "half"]


def test_many_builds_at_once_agree(processes: Processes, build: Any) -> None:
    processes.open_gate()
    started = [processes.start() for _ in range(4)]
    outputs = [process.communicate("", timeout=120)[0] for process in started]
    assert sorted(processes.runs()) == ["export", "load"]
    assert sum(output.count("built") for output in outputs) == 2
    assert all(output.endswith("end\n") for output in outputs)
    assert build.leftovers() == []
