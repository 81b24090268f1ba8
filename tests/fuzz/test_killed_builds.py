"""Killed and interrupted builds of a toy model, and loading of a bundle while it is replaced.

``pytest tests/fuzz/test_killed_builds.py --kill-points 0 --kill-times 200 --fuzz-seed 7`` kills a
build at each change of the file system, and kills and interrupts 200 builds each at random times.
"""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_builds import Harness, running

from vidc.runtime import load

PUBLISH = """
import random, shutil, sys, time
from pathlib import Path
from vidc.compiler.store.publish import replacing

output, *bundles = map(Path, sys.argv[1:])
while True:
    for bundle in bundles:
        with replacing(output, "package") as staging:
            shutil.copytree(bundle, staging, dirs_exist_ok=True)
        print(bundle, flush=True)
        # Uneven pauses: the reader's loads must not end in step with one of the bundles.
        time.sleep(random.uniform(0, 0.05))
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    harness = Harness(tmp_path_factory.mktemp("killed"))
    yield harness
    harness.close()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{request.node.name} {request.config.getoption('--fuzz-seed')}")


@pytest.fixture
def times(
    request: pytest.FixtureRequest, harness: Harness, rng: random.Random
) -> list[tuple[str, float]]:
    """Pairs of a state in ``Harness.states`` and a time during a build that starts from it."""
    count = request.config.getoption("--kill-times")
    states = [("cold", "ready")[number % 2] for number in range(count)]
    return [(state, rng.uniform(0, harness.states[state][1])) for state in states]


def report(wrong: list[str]) -> str:
    return f"{len(wrong)}:\n" + "\n".join(wrong[:20])


def test_a_build_killed_at_any_change_leaves_a_whole_bundle_and_is_resumed(
    harness: Harness, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    points = [(state, n) for state, (total, _) in harness.states.items() for n in range(total)]
    assert len(points) > 200
    wanted = request.config.getoption("--kill-points")
    chosen = rng.sample(points, wanted) if wanted else points
    wrong = [each for state, number in chosen for each in harness.at_change(state, number)]
    print(f"{len(chosen)} of {len(points)} changes, {harness.killed} builds killed")
    assert not wrong, report(wrong)


@pytest.mark.deep
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_build_ended_at_any_time_leaves_a_whole_bundle_and_is_resumed(
    harness: Harness, times: list[tuple[str, float]], sent: int
) -> None:
    wrong = [each for state, seconds in times for each in harness.after(state, seconds, sent)]
    assert not wrong, report(wrong)


def test_a_reader_loads_either_bundle_while_builds_replace_it(
    harness: Harness, tmp_path: Path
) -> None:
    bundles = [harness.folder / "cold" / "out", harness.folder / "new"]
    frames = {}
    for bundle in bundles:
        with load(bundle) as loaded:
            frames[bundle] = loaded.session(seed=1).step().clone()
    shutil.copytree(bundles[0], tmp_path / "out")
    words = [sys.executable, "-c", PUBLISH, tmp_path / "out", *bundles]
    seen = set()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        for number in range(400):
            if number >= 80 and seen == set(bundles):
                break
            with load(tmp_path / "out") as loaded:
                found = loaded.session(seed=1).step()
            seen |= {bundle for bundle in bundles if found.equal(frames[bundle])} or {None}
        writer.kill()
        assert len(writer.stdout.read().split()) > 20
    assert seen == set(bundles)


def test_harness_reports_a_damaged_bundle_and_what_stays(harness: Harness) -> None:
    planted = harness.folder / "planted"
    shutil.copytree(harness.folder / "ready", planted)
    (planted / "out" / "report.html").write_text("")
    (planted / "tmp" / "left").mkdir()
    wrong = harness.at_change("planted", 0)
    assert len(wrong) == 3
    assert "neither bundle" in wrong[0]
    assert "the bundle is refused: [VIDC-BUNDLE-TRUNCATED]" in wrong[1]
    assert "second build: tmp/left stays" in wrong[2]


def test_harness_finds_processes_of_a_session() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as started:
        # Between fork and exec, the child still has its parent's command line.
        while not any(each.endswith(": sleep 60 ") for each in running(started.pid)):
            pass
        started.kill()
        started.wait()
        (left,) = running(started.pid)
        assert left.endswith("sleep 60 ")
        subprocess.run(["kill", left.partition(":")[0]], check=True)
