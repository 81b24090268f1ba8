import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from device_stages import crash, occupy
from function_stage import FunctionStage
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.store import atomic, disk
from vidc.compiler.store.run import Result, fitting, run, working
from vidc.compiler.store.stage import Input, Stage, Workspace
from vidc.compiler.store.store import Store
from vidc.compiler.store.upkeep import ls
from vidc.plugins.errors import BuildError, UsageError


def chain(build: Any, load: str = "w", window: int = 12, scale: float = 1.0) -> list[Stage]:
    """Two branches from one stage, and a stage that joins one of them."""
    return [
        build.stage("load", {"weights": "w", "sizes/schema.json": "s"}, config=load),
        build.stage("export", {"graph": f"{window}"}, config=window, inputs=(Input("load"),)),
        build.stage("calibrate", {"amax": f"{scale}"}, config=scale, inputs=(Input("load"),)),
        build.stage("compile", {"engine": f"{window}"}, inputs=(Input("export"),)),
    ]


def test_a_second_build_runs_nothing(build: Any) -> None:
    first = build.run(*chain(build))
    assert build.ran == ["load", "export", "calibrate", "compile"]
    second = build.run(*chain(build))
    assert build.ran == []
    assert [r.hit for r in first.values()] == [False] * 4
    assert [r.hit for r in second.values()] == [True] * 4
    assert build.hits[-4:] == [(name, True) for name in first]
    assert {n: (r.path, r.key, r.files) for n, r in first.items()} == {
        n: (r.path, r.key, r.files) for n, r in second.items()
    }
    assert (second["load"].path / "sizes/schema.json").read_text() == "s"


def test_a_setting_reruns_only_the_stages_it_reaches(build: Any) -> None:
    build.run(*chain(build))
    build.run(*chain(build, scale=2.0))
    assert build.ran == ["calibrate"]
    build.run(*chain(build, window=8, scale=2.0))
    assert build.ran == ["export", "compile"]


def test_the_same_output_from_a_changed_input_stops_the_rebuild(build: Any) -> None:
    build.run(*chain(build))
    build.run(*chain(build, load="another way to the same weights"))
    assert build.ran == ["load"]


def test_a_stage_depends_only_on_the_files_it_names(build: Any) -> None:
    def stages(weights: str, schema: str) -> list[Stage]:
        files = {"weights": weights, "schema.json": schema}
        return [
            build.stage("load", files, config=[weights, schema]),
            build.stage("export", {}, inputs=(Input("load", ("schema.json",)),)),
        ]

    build.run(*stages("a", "s"))
    build.run(*stages("b", "s"))
    assert build.ran == ["load"]
    build.run(*stages("b", "t"))
    assert build.ran == ["load", "export"]


def test_a_stage_reads_the_published_outputs_it_consumes(build: Any) -> None:
    def export(workspace: Workspace) -> None:
        text = (workspace.inputs["load"] / "weights").read_text()
        (workspace.output / "graph").write_text(text * 2)

    load = build.stage("load", {"weights": "w"})
    results = build.run(load, build.stage("export", export, inputs=(Input("load"),)))
    assert (results["export"].path / "graph").read_text() == "ww"


def test_stages_out_of_order_are_refused(build: Any) -> None:
    load, export, *_ = chain(build)
    cases = {
        "does not come before it": (export, load),
        "two stages are named 'load'": (load, load),
        "consumes a stage twice": (
            load,
            build.stage("x", {}, inputs=(Input("load"), Input("load", ("weights",)))),
        ),
    }
    for message, stages in cases.items():
        with pytest.raises(ValueError, match=message):
            build.run(*stages)
    with pytest.raises(ValueError, match="does not come before it"):
        build.run(build.stage("a", {}, inputs=(Input("a"),)))
    assert build.ran == []


def test_a_file_that_was_not_written_cannot_be_consumed(build: Any) -> None:
    with pytest.raises(ValueError, match=r"\['absent'\] of 'load'"):
        build.run(
            build.stage("load", {"weights": "w"}),
            build.stage("export", {}, inputs=(Input("load", ("absent",)),)),
        )


def failing(build: Any, error: BaseException, text: str = "half") -> Stage:
    def fail(workspace: Workspace) -> None:
        (workspace.output / "graph").write_text(text)
        raise error

    return build.stage("export", fail, inputs=(Input("load"),))


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_failed_stage_leaves_nothing_and_earlier_ones_stay(
    build: Any, error: BaseException
) -> None:
    load, export, *_ = chain(build)
    with pytest.raises((BuildError, KeyboardInterrupt)):
        build.run(load, failing(build, error))
    assert build.leftovers() == []
    build.run(load, export)
    assert build.ran == ["export"]


def test_a_failure_names_the_stage_and_keeps_its_cause(build: Any) -> None:
    cause = RuntimeError("boom")
    with pytest.raises(BuildError, match="stage export failed: RuntimeError: boom") as error:
        build.run(chain(build)[0], failing(build, cause))
    assert error.value.code == "VIDC-BUILD-STAGE"
    assert error.value.__cause__ is cause


def test_errors_of_vidc_pass_as_they_are(build: Any) -> None:
    cause = UsageError("VIDC-CONFIG-SIZES", "no", "yes")
    with pytest.raises(UsageError) as error:
        build.run(chain(build)[0], failing(build, cause))
    assert error.value is cause


def test_an_output_may_not_point_outside(build: Any, tmp_path: Path) -> None:
    def link(workspace: Workspace) -> None:
        (workspace.output / "weights").symlink_to(tmp_path)

    with pytest.raises(BuildError, match="weights is not a regular file"):
        build.run(build.stage("load", link))
    assert build.leftovers() == []


def write_to_full_device(workspace: Workspace) -> None:
    (workspace.output / "weights").write_text("half")
    Path("/dev/full").write_text("x")


def test_a_full_disk_is_told_with_free_and_needed_space(build: Any) -> None:
    build.run(build.stage("load", {"weights": "w" * 20_000}))
    with pytest.raises(BuildError) as error:
        build.run(build.stage("load", write_to_full_device, config=1))
    assert error.value.code == "VIDC-BUILD-DISK"
    assert "its last result took 20.00 kB" in error.value.message
    assert error.value.message.endswith(" free")
    assert isinstance(error.value.__cause__, OSError)
    assert build.leftovers() == []
    build.run(build.stage("load", {"weights": "w"}, config=1))
    assert build.ran == ["load"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_while_publishing(
    build: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        with pytest.raises(BuildError) as error:
            build.run(build.stage("load", {"weights": "w"}))
    assert error.value.code == "VIDC-BUILD-DISK"
    assert build.leftovers() == []
    build.run(build.stage("load", {"weights": "w"}))
    assert build.ran == ["load"]


def test_a_library_that_hides_the_errno_of_a_full_disk(
    build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = chain(build)[0]
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK"):
        build.run(load, failing(build, RuntimeError("No space left on device (os error 28)")))
    monkeypatch.setattr(disk, "_free", lambda _: 0)
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK"):
        build.run(load, failing(build, RuntimeError("file write failed")))


def test_permission_error_is_a_disk_error_only_in_the_output(build: Any, tmp_path: Path) -> None:
    load = chain(build)[0]

    def deny(workspace: Workspace) -> None:
        raise PermissionError(errno.EACCES, "denied", str(workspace.output / "x"))

    with pytest.raises(BuildError, match="VIDC-BUILD-DISK"):
        build.run(build.stage("a", deny))
    outside = PermissionError(errno.EACCES, "denied", str(tmp_path / "elsewhere"))
    with pytest.raises(BuildError, match="VIDC-BUILD-STAGE"):
        build.run(load, failing(build, outside))


@pytest.mark.parametrize("place", ["a file", "a dangling link", "in a folder that takes none"])
def test_a_cache_that_cannot_be_made(build: Any, place: str) -> None:
    if place == "a file":
        build.root.write_text(place)
    elif place == "a dangling link":
        build.root.symlink_to("nowhere")
    else:
        build.root = Path("/proc/vidc")
    with pytest.raises(BuildError, match="cannot write to the cache") as error:
        build.run(*chain(build))
    assert error.value.code == "VIDC-BUILD-DISK"
    assert "VIDC_CACHE" in error.value.hint


CAPACITY = 10
NEEDS = st.lists(st.integers(0, 14), max_size=12)


@given(NEEDS, st.lists(st.integers(0, 14), max_size=2), st.none() | st.integers(0, 30))
def test_started_stages_fit_and_overtake_none(
    queue: list[int], running: list[int], capacity: int | None
) -> None:
    starting = fitting(queue, running, capacity)
    assert len(set(starting)) == len(starting)
    left = [index for index in range(len(queue)) if index not in starting]
    taking = [index for index in starting if queue[index] > 0]
    taken = sum(running) + sum(queue[index] for index in taking)
    if capacity is None:
        assert left == []
        return
    if taking:
        assert taken <= capacity or (len(taking) == 1 and not any(running))
    if left:
        assert min(queue[index] for index in left) > 0
        first = min(left, key=lambda index: (-queue[index], index))
        assert taken > 0
        assert taken + queue[first] > capacity
        assert all((-queue[index], index) < (-queue[first], first) for index in taking)


@given(NEEDS, st.data())
def test_every_stage_has_its_turn(needs: list[int], data: st.DataObject) -> None:
    arriving, finished = list(needs), list[int]()
    queue, running = list[int](), list[int]()
    while arriving or queue or running:
        for _ in range(data.draw(st.integers(0, len(arriving)))):
            queue.append(arriving.pop())
        for index in sorted(fitting(queue, running, CAPACITY), reverse=True):
            running.append(queue.pop(index))
        taking = [need for need in running if need > 0]
        assert sum(taking) <= CAPACITY or len(taking) == 1
        assert running or not queue
        if running:
            done = data.draw(st.integers(0, len(running) - 1))
            finished.append(running.pop(done))
    assert sorted(finished) == sorted(needs)


def test_the_largest_starts_first_and_of_equal_ones_the_earliest() -> None:
    assert fitting([2, 0, 7, 2], [], None) == [2, 0, 3, 1]
    assert fitting([4, 9], [2], CAPACITY) == []
    assert fitting([4, 9], [], CAPACITY) == [1]
    assert fitting([0, 4, 11], [1], CAPACITY) == [0]
    assert fitting([0, 4, 11], [0], CAPACITY) == [2, 0]


def device_stage(name: str, work: Callable[[Workspace], None], **fields: Any) -> Stage:
    return FunctionStage(name, work, **fields)


@contextmanager
def side_by_side(
    build: Any, *stages: Stage, workers: int, **options: Any
) -> Iterator[dict[str, Result]]:
    """The results of stages that processes of their own built."""
    with Store(build.root) as store, working(store, workers) as pool:
        yield run(stages, store, "slot", build, pool, **options)


def span(result: Result) -> tuple[float, float]:
    """When a stage of ``occupy`` began and ended, in seconds."""
    began, ended, _ = (result.path / "ran").read_text().split()
    return float(began), float(ended)


def test_stages_stay_within_device_memory(build: Any) -> None:
    needs = {"a": 6, "b": 5, "c": 4, "d": 3, "oversized": 12, "e": 0, "f": 0}
    work = partial(occupy, seconds=0.1)
    stages = [device_stage(name, work, device_bytes=need) for name, need in needs.items()]
    with side_by_side(build, *stages, workers=4, device_bytes=CAPACITY) as results:
        assert results.keys() == needs.keys()
        spans = {name: span(result) for name, result in results.items()}
        pids = {n: (result.path / "ran").read_text().split()[2] for n, result in results.items()}
    for moment, _ in spans.values():
        there = [needs[n] for n, (began, ended) in spans.items() if began <= moment < ended]
        taking = [need for need in there if need > 0]
        assert sum(taking) <= CAPACITY or taking == [12]
    # What one leaves on the device must not be there for the next.
    assert len({pid for name, pid in pids.items() if needs[name]}) == 5


def test_stages_that_fit_share_the_device(build: Any, tmp_path: Path) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    stages = [
        device_stage("left", partial(occupy, told=left, until=right), device_bytes=6),
        device_stage("right", partial(occupy, told=right, until=left), device_bytes=4),
    ]
    with side_by_side(build, *stages, workers=2, device_bytes=CAPACITY) as results:
        assert results.keys() == {"left", "right"}


def test_stages_that_need_nothing_pass_those_that_wait(build: Any, tmp_path: Path) -> None:
    told = tmp_path / "free"
    stages = [
        device_stage("oversized", partial(occupy, until=told), device_bytes=CAPACITY + 1),
        device_stage("waiting", occupy, device_bytes=1),
        device_stage("export", occupy),
        device_stage("free", partial(occupy, told=told), inputs=(Input("export"),)),
    ]
    with side_by_side(build, *stages, workers=3, device_bytes=CAPACITY) as results:
        assert span(results["waiting"])[0] > span(results["oversized"])[1]


def test_what_follows_a_found_stage_does_not_wait_for_others(build: Any, tmp_path: Path) -> None:
    told = tmp_path / "compile"
    export = device_stage("export", occupy)
    with side_by_side(build, export, workers=2):
        pass
    stages = [
        export,
        device_stage("load", partial(occupy, until=told)),
        device_stage("compile", partial(occupy, told=told), inputs=(Input("export"),)),
    ]
    with side_by_side(build, *stages, workers=2) as results:
        assert results["export"].hit


@pytest.mark.parametrize("need", [0, 1])
def test_a_stage_whose_process_dies_is_named(build: Any, need: int) -> None:
    dying = device_stage("compile:dying", crash, device_bytes=need)
    with (
        pytest.raises(BuildError, match="VIDC-BUILD-STAGE") as error,
        side_by_side(build, dying, workers=2, device_bytes=CAPACITY),
    ):
        pass
    assert "compile:dying" in error.value.message


def test_a_stage_whose_process_dies_takes_no_other_with_it(build: Any, tmp_path: Path) -> None:
    there = tmp_path / "there"
    dying = device_stage("compile:dying", partial(crash, until=there))
    other = device_stage("compile:other", partial(occupy, told=there, seconds=0.5))
    with (
        pytest.raises(BuildError, match="stage compile:dying ended its process"),
        side_by_side(build, other, dying, workers=2),
    ):
        pass
    with side_by_side(build, other, workers=2) as results:
        assert results["compile:other"].hit


def test_device_memory_is_not_in_the_key(build: Any) -> None:
    build.run(build.stage("golden", {"data": "d"}, device_bytes=1))
    build.run(build.stage("golden", {"data": "d"}, device_bytes=2))
    assert build.ran == []


def test_cache_folder_is_in_no_key_and_no_result(build: Any) -> None:
    seen = []

    def keeping(workspace: Workspace) -> None:
        assert workspace.kept is not None
        workspace.kept.mkdir(exist_ok=True)
        count = workspace.kept / "count"
        seen.append(int(count.read_text()) if count.exists() else 0)
        count.write_text(str(seen[-1] + 1))
        (workspace.output / "engine").write_text("e")

    first, second = (build.stage("compile", keeping, config=config) for config in (1, 2))
    result = build.run(first)["compile"]
    build.run(second)
    assert seen == [0, 1]
    assert build.run(first)["compile"].key == result.key
    assert seen == [0, 1]
    assert list(result.files) == ["engine"]
    with Store(build.root) as store:
        assert len(ls(store)) == 2
