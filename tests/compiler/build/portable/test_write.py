"""A portable build folder appears whole, in the place of an older one, or not at all."""

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vidc.compiler.build import portable_write as writing
from vidc.compiler.build.portable_document import DOCUMENT_NAME, Document, stage_folder
from vidc.compiler.build.portable_read import open_portable
from vidc.compiler.build.portable_write import write_portable
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.record import File
from vidc.compiler.store.run import Result
from vidc.plugins.errors import BuildError, UsageError
from vidc.runtime.strict import plain


@pytest.fixture
def results(document: Document, folder: Path) -> Mapping[str, Result]:
    """As if the stages had just run; their outputs are those of the fixture's folder."""
    return {
        name: Result(
            folder / stage_folder(name),
            plain(output.components),
            {path: File(entry.size, entry.sha256) for path, entry in output.files.items()},
            output.components.key,
            hit=False,
            seconds=0.0,
        )
        for name, output in document.stages.items()
    }


def test_what_is_written_can_be_opened(
    settings: Settings, results: Mapping[str, Result], tmp_path: Path, folder: Path
) -> None:
    output = tmp_path / "out" / "a.portable"
    assert not write_portable(settings, results, output, print)
    shutil.rmtree(folder)
    portable = open_portable(output)
    assert portable.settings == settings
    assert {n: s.components.key for n, s in portable.document.stages.items()} == {
        n: r.key for n, r in results.items()
    }
    assert os.listdir(tmp_path / "out") == ["a.portable"]


def test_no_path_of_this_machine_is_in_it(
    settings: Settings, results: Mapping[str, Result], tmp_path: Path
) -> None:
    write_portable(settings, results, tmp_path / "out", print)
    assert str(tmp_path) not in (tmp_path / "out" / DOCUMENT_NAME).read_text()


def test_the_same_folder_is_found_and_a_damaged_one_replaced(
    settings: Settings, results: Mapping[str, Result], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    write_portable(settings, results, output, print)
    before = (output / DOCUMENT_NAME).stat().st_ino
    assert write_portable(settings, results, output, print)
    assert (output / DOCUMENT_NAME).stat().st_ino == before
    (output / "load" / "vae" / "a" / "data").unlink()
    assert not write_portable(settings, results, output, print)
    open_portable(output)


def test_something_else_is_not_replaced(
    settings: Settings, results: Mapping[str, Result], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="VIDC-BUILD-OUTPUT"):
        write_portable(settings, results, tmp_path / "out", print)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_the_older_folder(
    settings: Settings,
    results: Mapping[str, Result],
    tmp_path: Path,
    monkeypatch: Any,
    error: BaseException,
) -> None:
    output = tmp_path / "x" / "out"
    write_portable(settings, results, output, print)
    (output / "load" / "vae" / "a" / "data").write_text("another")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(writing, "write_document", fail)
    with pytest.raises(BuildError if isinstance(error, OSError) else KeyboardInterrupt) as raised:
        write_portable(settings, results, output, print)
    if isinstance(error, OSError):
        assert "VIDC-BUILD-DISK" in str(raised.value)
    assert (output / "load" / "vae" / "a" / "data").read_text() == "another"
    assert os.listdir(tmp_path / "x") == ["out"]
