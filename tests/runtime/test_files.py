"""Files of a bundle: what is read is what was compared."""

import os
import threading
from pathlib import Path

import pytest
from entries import file_entries

from vidc.plugins.errors import GateError
from vidc.runtime.files import Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bundle" / "engines").mkdir(parents=True)
    (tmp_path / "bundle" / "engines" / "a.bin").write_bytes(b"good" * 1000)
    return tmp_path / "bundle"


PATH = "engines/a.bin"


def refused(files: Files, code: str) -> None:
    with pytest.raises(GateError) as caught:
        files.read(PATH)
    assert caught.value.code == code


def test_reads_the_file_that_was_opened_though_another_takes_its_name(folder: Path) -> None:
    with Files(folder, file_entries(folder)) as files:
        name = files.name(PATH)
        other = folder / "engines" / "other"
        other.write_bytes(b"evil" * 1000)
        other.replace(folder / PATH)
        assert files.read(PATH) == Path(name).read_bytes() == b"good" * 1000
        with pytest.raises(GateError, match="VIDC-BUNDLE-CHANGED"):
            files.refuse_changes()


def test_never_reads_what_was_not_hashed(folder: Path) -> None:
    """Another thread exchanges two files all the while."""
    entries, stop = file_entries(folder), threading.Event()
    good, evil = folder / "good", folder / "evil"
    good.write_bytes(b"good" * 1000)
    evil.write_bytes(b"evil" * 1000)

    def exchange() -> None:
        while not stop.is_set():
            for source in (evil, good):
                copy = folder / "copy"
                copy.write_bytes(source.read_bytes())
                copy.replace(folder / PATH)

    thread = threading.Thread(target=exchange)
    thread.start()
    outcomes = set()
    try:
        for _ in range(300):
            with Files(folder, entries) as files:
                try:
                    outcomes.add(files.read(PATH))
                except GateError as error:
                    outcomes.add(error.code.encode())
    finally:
        stop.set()
        thread.join()
    assert outcomes <= {b"good" * 1000, b"VIDC-BUNDLE-ALTERED"}


@pytest.mark.parametrize("change", ["written", "removed", "touched", "hard-linked"])
def test_refuses_changes_since_the_file_was_opened(folder: Path, change: str) -> None:
    with Files(folder, file_entries(folder)) as files:
        files.read(PATH)
        files.refuse_changes()
        if change == "written":
            with (folder / PATH).open("r+b") as stream:
                stream.write(b"x")
        elif change == "removed":
            (folder / PATH).unlink()
        elif change == "touched":
            os.utime(folder / PATH)
        else:
            os.link(folder / PATH, folder.parent / "second")
        with pytest.raises(GateError, match="VIDC-BUNDLE-CHANGED"):
            files.refuse_changes()


def test_a_hard_link_is_a_file_like_any_other(folder: Path) -> None:
    os.link(folder / PATH, folder.parent / "second")
    with Files(folder, file_entries(folder)) as files:
        assert files.read(PATH)


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    entries = file_entries(folder)
    (folder / PATH).unlink()
    os.mkfifo(folder / PATH)
    with Files(folder, entries) as files:
        refused(files, "VIDC-BUNDLE-PATH")


def test_a_folder_that_became_a_link_is_refused(folder: Path) -> None:
    entries = file_entries(folder)
    (folder / "engines").rename(folder.parent / "elsewhere")
    (folder / "engines").symlink_to(folder.parent / "elsewhere")
    with Files(folder, entries) as files:
        refused(files, "VIDC-BUNDLE-PATH")


def test_a_file_that_the_manifest_does_not_list_is_refused(folder: Path) -> None:
    with Files(folder, {}) as files:
        refused(files, "VIDC-BUNDLE-MISSING")


def test_leaves_out_the_rest_once_it_is_stopped(folder: Path) -> None:
    (folder / "other").write_bytes(b"good")
    entries, stop = file_entries(folder), threading.Event()
    (folder / "other").write_bytes(b"evil")
    with Files(folder, entries) as files:
        with pytest.raises(GateError, match="VIDC-BUNDLE-ALTERED"):
            files.compare([PATH, "other"], stop)
        stop.set()
        files.compare([PATH, "other"], stop)


def test_a_sealed_copy_cannot_be_changed(folder: Path) -> None:
    with Files(folder, file_entries(folder)) as files:
        copy = Path(files.sealed(PATH))
        assert copy.read_bytes() == b"good" * 1000
        with pytest.raises(OSError, match="not permitted"):
            copy.write_bytes(b"evil")


def test_descriptors_are_closed(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Files(folder, file_entries(folder)) as files:
        files.sealed(PATH)
        files.refuse_changes()
    assert len(os.listdir("/proc/self/fd")) == before
