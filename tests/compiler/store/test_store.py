import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from vidc.compiler.store.atomic import FileLock, Mode
from vidc.compiler.store.digest import REMEMBER_FROM
from vidc.compiler.store.plan import Status
from vidc.compiler.store.store import ABANDONED_SECONDS, KEPT, Store
from vidc.compiler.store.upkeep import ls, prune, verify


def stages(build: Any) -> list[Any]:
    return [
        build.stage("load", {"weights": "w" * 100, "schema": "s"}),
        build.stage("export:denoise", {"graph": "g" * 10}),
    ]


def truncate(entry: Path) -> None:
    (entry / "output" / "weights").write_text("w")


def flip_a_bit(entry: Path) -> None:
    (entry / "output" / "weights").write_text("v" + "w" * 99)


def remove_a_file(entry: Path) -> None:
    (entry / "output" / "schema").unlink()


def add_a_file(entry: Path) -> None:
    (entry / "output" / "extra").write_text("")


def spoil_the_record(entry: Path) -> None:
    (entry / "record.json").write_text("{")


def change_the_components(entry: Path) -> None:
    record = json.loads((entry / "record.json").read_text())
    record["components"]["config"] = "another"
    (entry / "record.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [truncate, flip_a_bit, remove_a_file, add_a_file, spoil_the_record, change_the_components],
)
def test_a_damaged_entry_is_built_again_and_never_used(build: Any, damage: Any) -> None:
    result = build.run(*stages(build))["load"]
    damage(result.path.parent)
    again = build.run(*stages(build))["load"]
    assert build.ran == ["load"]
    assert build.notes == ["load: the cached result is damaged, building it again"]
    assert (again.path, again.files) == (result.path, result.files)
    assert {p.name: p.read_text() for p in again.path.iterdir()} == {
        "weights": "w" * 100,
        "schema": "s",
    }


def test_a_large_damaged_file_is_found_though_its_digest_is_remembered(build: Any) -> None:
    stage = build.stage("load", {"weights": "w" * REMEMBER_FROM})
    weights = build.run(stage)["load"].path / "weights"
    long_ago = weights.stat().st_mtime - 60
    os.utime(weights, (long_ago, long_ago))
    build.run(stage)
    assert len(list((build.root / ".digests").iterdir())) == 1
    weights.write_text("v" + "w" * (REMEMBER_FROM - 1))
    assert [row.status for row in build.plan(stage)] == [Status.MISS]
    build.run(stage)
    assert build.ran == ["load"]


def test_the_record_says_what_was_built_from_what(build: Any) -> None:
    result = build.run(build.stage("load", {"weights": "w"}, config={"seed": 1}))["load"]
    record = json.loads((result.path.parent / "record.json").read_text())
    assert record["components"]["config"] == {"seed": 1}
    assert record["files"]["weights"]["size"] == 1
    assert record["vidc"]
    assert result.path == build.root / "load" / result.key / "output"


def test_ls_and_verify_see_what_is_there(build: Any) -> None:
    results = build.run(*stages(build))
    store = Store(build.root)
    assert {(e.stage, e.key, e.size) for e in ls(store)} == {
        ("load", results["load"].key, 101),
        ("export:denoise", results["export:denoise"].key, 10),
    }
    assert verify(store) == []


def test_verify_finds_damage_that_sizes_do_not_show(build: Any) -> None:
    result = build.run(*stages(build))["load"]
    (result.path / "weights").write_text("x" * 100)
    store = Store(build.root)
    (reported,) = verify(store)
    assert (reported.path, reported.removed) == (result.path.parent, False)
    assert "weights has digest" in reported.problem
    (removed,) = verify(store, remove=True)
    assert removed.removed
    assert not result.path.exists()
    build.run(*stages(build))
    assert build.ran == ["load"]


def test_verify_keeps_an_entry_that_is_repaired_before_it_is_locked(
    build: Any, monkeypatch: Any
) -> None:
    build.run(*stages(build))
    entry = next(Store(build.root).paths())
    file = next((entry / "output").iterdir())
    whole = file.read_bytes()
    file.write_bytes(b"")
    acquire = FileLock.try_acquire

    def repaired_before(lock: FileLock, mode: Mode) -> bool:
        if mode is Mode.EXCLUSIVE:
            file.write_bytes(whole)
        return acquire(lock, mode)

    monkeypatch.setattr(FileLock, "try_acquire", repaired_before)
    assert verify(Store(build.root), remove=True) == []
    assert entry.exists()


def test_prune_removes_the_longest_unused_first(build: Any) -> None:
    results = build.run(*stages(build))
    for age, result in zip((10, 5000), results.values(), strict=True):
        record = result.path.parent / "record.json"
        os.utime(record, (record.stat().st_mtime - age,) * 2)
    store = Store(build.root)
    assert prune(store, max_bytes=200, older_than=10_000) == []
    assert [e.stage for e in prune(store, max_bytes=105)] == ["export:denoise"]
    assert [e.stage for e in prune(store, older_than=5)] == ["load"]
    assert ls(store) == []
    assert build.leftovers() == []


def test_use_updates_the_time_of_last_use(build: Any) -> None:
    result = build.run(*stages(build))["load"]
    os.utime(result.path.parent / "record.json", (0, 0))
    build.run(*stages(build))
    assert prune(Store(build.root), older_than=1000) == []


def test_entries_in_use_are_not_removed(build: Any) -> None:
    with Store(build.root) as store:
        components = {"stage": "load", "config": 1}
        entry, _ = store.obtain(components, lambda o: (o / "f").touch(), build.note)
        other = Store(build.root)
        assert prune(other, max_bytes=-1) == []
        (entry.output / "f").write_text("damaged")
        (damage,) = verify(other, remove=True)
        assert not damage.removed
        assert entry.output.exists()
    (damage,) = verify(other, remove=True)
    assert damage.removed
    assert not entry.output.exists()


def test_a_store_reuses_what_it_holds_itself(build: Any) -> None:
    def touch(output: Path) -> None:
        (output / "f").touch()

    with Store(build.root) as store:
        first, built = store.obtain({"stage": "load"}, touch, build.note)
        (first.output / "f").unlink()
        _, rebuilt = store.obtain({"stage": "load"}, touch, build.note)
        _, reused = store.obtain({"stage": "load"}, touch, build.note)
    assert (built, rebuilt, not reused) == (True, True, True)


def test_the_loser_of_a_race_without_locks_throws_its_copy_away(build: Any) -> None:
    components = {"stage": "load"}
    winner: list[Path] = []

    def lose(output: Path) -> None:
        if not winner:
            winner.append(output)
            blind = Store(build.root)
            blind.lock = lambda key: FileLock(build.root / "elsewhere")  # type: ignore[method-assign]
            blind.obtain(components, lambda o: (o / "f").write_text("first"), build.note)
        (output / "f").write_text("later")

    with Store(build.root) as store:
        entry, _ = store.obtain(components, lose, build.note)
    assert (entry.output / "f").read_text() == "first"
    assert build.leftovers() == []


def test_leftovers_of_dead_builds_are_swept_and_live_ones_are_not(build: Any) -> None:
    drafts = build.root / ".drafts"
    dead, live = (drafts / f"{key}-1-{socket.gethostname()}" for key in ("dead", "live"))
    far, forgotten = drafts / "far-1-other-host", drafts / "forgotten-1-other-host"
    for draft in (dead, live, far, forgotten):
        (draft / "output").mkdir(parents=True)
    then = forgotten.stat().st_mtime - ABANDONED_SECONDS - 1
    os.utime(forgotten, (then, then))
    store = Store(build.root)
    lock = store.lock("live")
    assert lock.try_acquire(Mode.EXCLUSIVE)
    store.sweep()
    assert set(build.leftovers()) == {live, far}
    lock.close()
    store.sweep()
    assert build.leftovers() == [far]


def test_old_drafts_of_files_are_swept(build: Any) -> None:
    build.run(build.stage("load", {"f": ""}))
    (slot,) = (build.root / ".slots").iterdir()
    old, recent = (slot.with_name(f".{slot.name}.{digit * 32}") for digit in "0a")
    old.touch()
    recent.touch()
    then = old.stat().st_mtime - ABANDONED_SECONDS - 1
    for file in (old, slot):
        os.utime(file, (then, then))
    recording = build.root / KEPT / "calibrate" / f".ranges.safetensors.{'0' * 32}"
    recording.parent.mkdir(parents=True)
    recording.touch()
    os.utime(recording, (then, then))
    Store(build.root).sweep()
    assert {*slot.parent.iterdir()} == {slot, recent}
    assert not recording.exists()


def test_a_stray_file_among_the_drafts_is_left_alone(build: Any) -> None:
    build.run(build.stage("load", {"f": ""}))
    stray = build.root / ".drafts" / "note.txt"
    stray.parent.mkdir(exist_ok=True)
    stray.touch()
    Store(build.root).sweep()
    assert stray.exists()


def test_a_lock_has_many_readers_or_one_writer(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    assert first.try_acquire(Mode.SHARED)
    assert second.try_acquire(Mode.SHARED)
    assert not second.try_acquire(Mode.EXCLUSIVE)
    assert first.try_acquire(Mode.EXCLUSIVE)
    assert not second.try_acquire(Mode.SHARED)
    first.close()
    assert second.try_acquire(Mode.EXCLUSIVE)
    second.close()
