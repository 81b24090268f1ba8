"""Allowed contents of an output folder, and its replacement."""

import json
import os
import signal
import subprocess
import sys

import pytest

from vidc.compiler.store import publish
from vidc.compiler.store.atomic import exchange
from vidc.compiler.store.publish import Kind, exclusive, replacing
from vidc.compiler.store.store import Store
from vidc.plugins.errors import UsageError

KIND = Kind("list.json", lambda document: document["files"])


@pytest.fixture
def output(tmp_path):
    """A folder of this kind, with a file in a folder of its own."""
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "data").touch()
    (folder / "list.json").write_text(json.dumps({"files": {"deep/data": 4}}))
    return folder


def refused(output):
    with pytest.raises(UsageError) as caught:
        KIND.refuse_occupied(output)
    assert caught.value.code == "VIDC-BUILD-OUTPUT"
    return caught.value


def test_an_older_one_may_be_replaced_and_so_may_nothing(output, tmp_path):
    KIND.refuse_occupied(output)
    (output / "deep" / "data").unlink()
    KIND.refuse_occupied(output)
    KIND.refuse_occupied(tmp_path / "new" / "folder")
    (tmp_path / "empty").mkdir()
    KIND.refuse_occupied(tmp_path / "empty")


@pytest.mark.parametrize("name", ["notes.txt", "deep/notes.txt", "link"])
def test_a_file_that_the_document_does_not_list_is_named(output, name):
    if name == "link":
        (output / name).symlink_to("/nowhere")
    else:
        (output / name).touch()
    assert f"holds {name!r}, which its list.json does not list" in refused(output).message
    (output / "zzz").touch()
    assert f"{name!r} and 1 more" in refused(output).message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": [[]]}', "[" * 9999])
def test_a_document_that_says_nothing_lists_nothing(output, text):
    (output / "list.json").write_text(text)
    assert "'deep/data'" in refused(output).message
    (output / "deep" / "data").unlink()
    KIND.refuse_occupied(output)


def test_refuses_a_file_and_a_folder_of_another_kind(output, tmp_path):
    (tmp_path / "file").touch()
    assert "is no folder" in refused(tmp_path / "file").message
    for below in ("file/out", "file/deep/out"):
        assert f"{tmp_path / 'file'} is no folder" in refused(tmp_path / below).message
    (output / "list.json").unlink()
    assert "has no list.json" in refused(output).message


PUBLISH = """
import sys
from pathlib import Path
from vidc.compiler.store.publish import replacing

for number in range(int(sys.argv[2])):
    with replacing(Path(sys.argv[1]), "package") as staging:
        (staging / "number").write_text(str(number))
    print(number, flush=True)
"""


def publishing(output, times):
    words = [sys.executable, "-c", PUBLISH, output, str(times)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_a_reader_finds_the_older_or_the_newer_one(tmp_path):
    output = tmp_path / "out"
    with replacing(output, "package") as staging:
        (staging / "number").write_text("0")
    found = []
    with publishing(output, 100) as writer:
        while writer.poll() is None:
            found.append(os.stat(output).st_ino)  # Raises if there is none.
        assert len(writer.stdout.read().split()) == 100
    assert len(set(found)) > 1
    assert (output / "number").read_text() == "99"
    assert os.listdir(tmp_path) == ["out"]


def test_a_kill_leaves_the_older_or_the_newer_one(tmp_path):
    output = tmp_path / "out"
    for seen in range(1, 7):
        with publishing(output, 10_000) as writer:
            for _ in range(seen):
                last = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
        assert int((output / "number").read_text()) >= last
    with replacing(output, "package") as staging:
        (staging / "number").write_text("end")
    assert (output / "number").read_text() == "end"
    assert os.listdir(tmp_path) == ["out"]


def test_a_build_removes_what_killed_ones_left(output, tmp_path):
    draft = f".out.{'0' * 32}"  # Of its manifest.
    for name in (".out.partial", ".out.old", draft, ".out.other.partial", ".out.notes"):
        (tmp_path / name).mkdir() if name != draft else (tmp_path / name).touch()
    with Store(tmp_path / "store") as store, exclusive(store, output, print):
        assert {*os.listdir(tmp_path)} == {"out", "store", ".out.other.partial", ".out.notes"}
    assert (output / "list.json").exists()


def test_replaces_where_folders_cannot_be_exchanged(output, monkeypatch):
    monkeypatch.setattr(publish, "exchange", lambda *_: False)
    with replacing(output, "package") as staging:
        (staging / "new").touch()
        assert (output / "list.json").exists()
    assert os.listdir(output) == ["new"]
    assert os.listdir(output.parent) == ["out"]


def test_exchange_gives_each_folder_the_others_name(output, tmp_path):
    (tmp_path / "other").mkdir()
    assert exchange(output, tmp_path / "other")
    assert os.listdir(output) == []
    with pytest.raises(FileNotFoundError):
        exchange(output, tmp_path / "nothing")


def test_an_interrupt_while_the_older_one_is_removed_leaves_nothing(tmp_path, monkeypatch):
    output, unlink = tmp_path / "out", os.unlink
    output.mkdir()
    for name in "abc":
        (output / name).write_text("old")

    def interrupted(*_, **__):
        monkeypatch.setattr(os, "unlink", unlink)
        raise KeyboardInterrupt

    def publish_and_interrupt():
        with replacing(output, "package") as staging:
            (staging / "new").write_text("new")
            monkeypatch.setattr(os, "unlink", interrupted)

    with pytest.raises(KeyboardInterrupt):
        publish_and_interrupt()
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(output) == ["new"]
