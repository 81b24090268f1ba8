"""Stages built side by side in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import worker_stages
from function_stage import FunctionStage
from worker_stages import fail, fail_stubbornly, join, write_pid

from vidc.compiler.store.run import run, working
from vidc.compiler.store.stage import Input
from vidc.compiler.store.store import Store
from vidc.compiler.store.workers import Workers
from vidc.plugins.errors import BuildError

PAIR = [FunctionStage(name, write_pid) for name in ("left", "right")]
JOINED = FunctionStage("joined", join, inputs=(Input("left"), Input("right")))


class Silent:
    def __init__(self) -> None:
        self.finished_stages: list[tuple[str, bool]] = []

    def started(self, stage: str) -> None:
        pass

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        self.finished_stages.append((stage, hit))

    def note(self, text: str) -> None:
        pass


def test_builds_in_workers_then_hits_everything(tmp_path):
    progress = Silent()
    with Store(tmp_path) as store, working(store, 2) as pool:
        results = run([*PAIR, JOINED], store, "slot", progress, pool)
        assert list(results) == ["left", "right", "joined"]
        pids = (results["joined"].path / "pids").read_text().split()
    assert str(os.getpid()) not in pids
    assert len(set(pids)) == 2
    assert sorted(progress.finished_stages) == [
        ("joined", False), ("left", False), ("right", False),
    ]  # fmt: skip
    again = Silent()
    with Store(tmp_path) as store, working(store, 2) as pool:
        run([*PAIR, JOINED], store, "slot", again, pool)
    assert all(hit for _, hit in again.finished_stages)


def test_an_error_that_does_not_survive_pickling_is_told_as_text(tmp_path):
    with Store(tmp_path) as store, working(store, 1) as pool:
        stage = FunctionStage("stubborn", fail_stubbornly)
        with pytest.raises(BuildError, match="StubbornError: a kernel: no registers"):
            run([stage], store, "slot", Silent(), pool)


@pytest.mark.parametrize(("own", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_workers_sleep_while_they_wait(monkeypatch, own, expected):
    name = "OMP_WAIT_POLICY"
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)
    with Workers(1) as pool:
        assert pool.submit(os.getenv, name).result("stage") == expected
    assert os.environ.get(name) == own


def test_a_stage_that_waits_for_a_worker_is_not_told_as_started(tmp_path):
    class Counting(Silent):
        running = most = 0

        def started(self, stage: str) -> None:
            self.running += 1
            self.most = max(self.most, self.running)

        def finished(self, stage: str, hit: bool, seconds: float) -> None:
            self.running -= 1

    progress = Counting()
    with Store(tmp_path) as store, working(store, 2) as pool:
        run([*PAIR, FunctionStage("third", write_pid)], store, "slot", progress, pool)
    assert (progress.running, progress.most) == (0, 2)


def test_a_failure_reaches_the_caller_and_the_rest_is_kept(tmp_path):
    stages = [PAIR[0], PAIR[1], FunctionStage("failing", fail), JOINED]
    with (
        Store(tmp_path) as store,
        working(store, 2) as pool,
        pytest.raises(BuildError, match="VIDC-TEST"),
    ):
        run(stages, store, "slot", Silent(), pool)
    progress = Silent()
    with Store(tmp_path) as store, working(store, 2) as pool:
        run(PAIR, store, "slot", progress, pool)
    assert ("left", True) in progress.finished_stages


@pytest.fixture
def start(tmp_path):
    """Starts a build of two stages; returns it and the processes that the stages told of."""
    builds = []

    def start(*stages, told):
        started = tmp_path / "started"
        started.mkdir()
        build = subprocess.Popen(
            [sys.executable, worker_stages.__file__, tmp_path / "store", *stages],
            env={**os.environ, "WORKERS_STARTED": str(started)},
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        builds.append(build)
        while len(list(started.iterdir())) < told:
            assert build.poll() is None, build.stderr.read()
            time.sleep(0.05)
        return build, [Path("/proc", file.name) for file in started.iterdir()]

    yield start
    for build in builds:
        build.kill()
        build.communicate()


def ended(processes, seconds=5):
    """Returns True if none of the processes runs any more, within some seconds."""
    deadline = time.monotonic() + seconds
    while any(process.exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(process.exists() for process in processes)


@pytest.mark.parametrize("interrupt", [os.killpg, os.kill], ids=["terminal", "kill"])
@pytest.mark.parametrize("other", ["sleep_long", "compile_long", "hang"])
def test_an_interrupt_ends_all_within_five_seconds_and_leaves_nothing(
    start, tmp_path, interrupt, other
):
    build, processes = start("sleep_long", other, told=3 if other == "compile_long" else 2)
    sent = time.monotonic()
    interrupt(build.pid, signal.SIGINT)
    _, errors = build.communicate(timeout=30)  # Its end of the pipe is theirs too.
    assert ended(processes, seconds=sent + 5 - time.monotonic())
    assert build.returncode != 0
    assert errors.count("Traceback") == 1, errors  # The build's own KeyboardInterrupt.
    assert "leaked" not in errors
    assert list((tmp_path / "store" / ".drafts").iterdir()) == []
    assert [path.name for path in (tmp_path / "store").iterdir() if path.name[0] != "."] == []


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_no_process_outlives_a_killed_build(start, sent):
    build, processes = start("hang", "compile_long", told=3)
    build.send_signal(sent)
    assert build.wait(timeout=5) == -sent
    assert ended(processes)


def test_a_worker_that_dies_takes_its_compiler_with_it(start):
    build, processes = start("compile_long", told=2)
    (worker,) = (p for p in processes if (p / "stat").read_text().split()[3] == str(build.pid))
    os.kill(int(worker.name), signal.SIGKILL)
    assert "ended its process" in build.communicate(timeout=30)[1]
    assert ended(processes)
