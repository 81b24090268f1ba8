"""Allowed contents of an output folder."""

import json

import pytest

from vidc.compiler.store.publish import Kind
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
