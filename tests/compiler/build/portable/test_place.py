"""Outputs from a portable build folder go into the store as they were, or not at all."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from vidc.compiler.build import place
from vidc.compiler.build.handed_over import HandedOver, open_portable, rest
from vidc.compiler.build.handover import Document
from vidc.compiler.build.place import Place
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store.run import Result, run
from vidc.compiler.store.store import Store
from vidc.plugins.errors import BuildError, GateError


def placed(portable: HandedOver, cache: Path) -> dict[str, Result]:
    with Store(cache) as store:
        stages = [stage for stage in rest(portable).stages if isinstance(stage, Place)]
        return run(stages, store, "slot", LineProgress())


def test_a_folder_s_outputs_are_found_in_the_store_without_it(
    folder: Path, tmp_path: Path, document: Document
) -> None:
    portable = open_portable(folder)
    results = placed(portable, tmp_path / "cache")
    for name, result in results.items():
        assert (result.path / "a" / "data").read_text() == name
        assert not result.hit
    shutil.rmtree(folder)
    assert all(result.hit for result in placed(portable, tmp_path / "cache").values())
    assert rest(portable).recorded == {n: s.components.key for n, s in document.stages.items()}


def test_a_folder_cannot_take_the_place_of_what_is_built_here(folder: Path, tmp_path: Path) -> None:
    """Under the recorded key its output would be used by every build here that has this key."""
    portable = open_portable(folder)
    placed(portable, tmp_path / "cache")
    with Store(tmp_path / "cache") as store:
        for name, key in rest(portable).recorded.items():
            assert store.lookup(name, key) is None


def test_a_file_that_changes_after_it_was_checked_is_not_used(folder: Path, tmp_path: Path) -> None:
    portable = open_portable(folder)
    (folder / "load" / "vae" / "a" / "data").write_bytes(b"LOAD:vae")
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-ALTERED.*load/vae"):
        placed(portable, tmp_path / "cache")
    assert not (tmp_path / "cache" / "load-vae").exists()


def test_a_file_that_becomes_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    portable = open_portable(folder)
    file = folder / "load" / "vae" / "a" / "data"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GateError, match="VIDC-BUNDLE-PATH"):
        placed(portable, tmp_path / "cache")


def test_a_file_that_goes_away_has_a_code(folder: Path, tmp_path: Path) -> None:
    portable = open_portable(folder)
    (folder / "load" / "vae" / "a" / "data").unlink()
    with pytest.raises(GateError, match="VIDC-BUNDLE-UNREADABLE"):
        placed(portable, tmp_path / "cache")


def test_a_full_disk_keeps_what_was_placed(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    portable, copy, copied = open_portable(folder), place._copy, []

    def full(source: Path, target: Path) -> Any:
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copied.append(source)
        return copy(source, target)

    monkeypatch.setattr(place, "_copy", full)
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK"):
        placed(portable, tmp_path / "cache")
    monkeypatch.undo()
    results = placed(portable, tmp_path / "cache")
    assert sum(result.hit for result in results.values()) == 2
