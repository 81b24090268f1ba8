"""A portable build folder comes from outside: all that can be wrong with one is told."""

import json
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.build import handed_over
from vidc.compiler.build.handed_over import is_portable, open_portable
from vidc.compiler.build.handover import DOCUMENT_NAME, Document, read_portable
from vidc.compiler.build.stages import stages
from vidc.compiler.config.recorded import recorded_settings
from vidc.compiler.config.resolve import Settings, resolve
from vidc.plugins.errors import GateError, VidcError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a document but the whole."""
    items = value.items() if isinstance(value, dict) else ()
    for key, item in items:
        yield (*path, key)
        yield from nodes(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def test_a_folder_opens_as_the_build_that_was_begun(
    folder: Path, settings: Settings, document: Document
) -> None:
    assert is_portable(folder)
    portable = open_portable(folder)
    assert portable.document == document
    assert portable.settings == settings
    assert portable.settings.origins == settings.origins


@pytest.mark.parametrize("assignments", [(), ("tensorrt.workspace_gb=2",)])
def test_settings_are_those_that_were_recorded(assignments: tuple[str, ...]) -> None:
    chosen = resolve("tiny", gpu="cpu", assignments=assignments, environ={})
    recorded = json.loads(json.dumps(chosen.to_json()))
    assert recorded_settings(recorded, chosen.origins, "here") == chosen


def set_field(*path: str, value: Any) -> Any:
    def change(document: dict[str, Any]) -> None:
        at(document, path[:-1])[path[-1]] = value

    return change


DENOISE = ("stages", "export:denoise", "components")


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            set_field("schema", value=4),
            "VIDC-PORTABLE-SCHEMA",
            "has schema 4; this vidc reads schema 3",
        ),
        (
            set_field("schema", value=2),
            "VIDC-PORTABLE-SCHEMA",
            "has schema 2; this vidc reads schema 3",
        ),
        (set_field("schema", value=True), "VIDC-BUNDLE-FIELD", "build.schema"),
        (set_field("new", value=1), "VIDC-BUNDLE-FIELD", "unknown field 'new'"),
        (lambda d: d.pop("origins"), "VIDC-BUNDLE-FIELD", "'origins' is missing"),
        (set_field("settings", "new", value=1), "VIDC-BUNDLE-FIELD", "unknown field 'new'"),
        (set_field("settings", "preset", value="../x"), "VIDC-BUNDLE-PATH", "'../x'"),
        (set_field("settings", "preset", value="a/x"), "VIDC-BUNDLE-FIELD", "is a path"),
        (set_field("settings", "family", value="x"), "VIDC-BUNDLE-FIELD", "no family 'x'"),
        (set_field("settings", "target", "name", value="h1"), "VIDC-BUNDLE-FIELD", "'h1'"),
        (set_field("settings", "target", "memory_gb", value=1), "VIDC-BUNDLE-FIELD", "'cpu'"),
        (set_field("settings", "backend", value="b"), "VIDC-PORTABLE-SETTINGS", "no backend 'b'"),
        (set_field("settings", "precision", value={}), "VIDC-BUNDLE-FIELD", "transformer"),
        (
            set_field("settings", "precision", "vae", value="bf16"),
            "VIDC-PORTABLE-SETTINGS",
            "has no bf16",
        ),
        (
            set_field("settings", "stream", "window", value=1),
            "VIDC-PORTABLE-SETTINGS",
            "stream.window = 1",
        ),
        (
            set_field("settings", "stream", "new", value=1),
            "VIDC-PORTABLE-SETTINGS",
            "no setting stream.new",
        ),
        (
            lambda d: d["settings"]["stream"].pop("batch"),
            "VIDC-PORTABLE-SETTINGS",
            "not complete",
        ),
        (
            set_field("settings", "model", "layers", value=7),
            "VIDC-PORTABLE-STAGES",
            "another sizes",
        ),
        (
            lambda d: d["stages"].pop("load:vae"),
            "VIDC-PORTABLE-STAGES",
            "'load:vae' is not a stage of both",
        ),
        (
            set_field(*DENOISE, "stage", value="export:x"),
            "VIDC-PORTABLE-STAGES",
            "is called 'export:x'",
        ),
        (set_field(*DENOISE, "sources", value="0" * 64), "VIDC-PORTABLE-SOURCES", "vidc 0.1.0"),
        (set_field(*DENOISE, "tools", "torch", value="99.0"), "VIDC-PORTABLE-TORCH", "99.0"),
        (set_field(*DENOISE, "tools", "torch", value="x"), "VIDC-PORTABLE-TORCH", "'x'"),
        (
            set_field("stages", "load:vae", "files", value={"../../x": {"size": 1, "sha256": ""}}),
            "VIDC-BUNDLE-FIELD",
            "is not a SHA-256",
        ),
        (
            set_field(
                "stages", "load:vae", "files", value={"../../x": {"size": 1, "sha256": "0" * 64}}
            ),
            "VIDC-BUNDLE-PATH",
            "../../x",
        ),
    ],
)
def test_a_document_that_is_not_right_is_refused(
    folder: Path, edit: Any, change: Any, code: str, message: str
) -> None:
    edit(change)
    with pytest.raises(VidcError) as error:
        open_portable(folder)
    assert error.value.code == code
    assert message in error.value.message


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda file: file.unlink(), "VIDC-BUNDLE-MISSING"),
        (truncate, "VIDC-BUNDLE-TRUNCATED"),
        (lambda file: file.write_bytes(b"LOAD:vae"), "VIDC-BUNDLE-ALTERED"),
        (lambda file: file.write_bytes(b"longer than before"), "VIDC-BUNDLE-ALTERED"),
        (lambda file: file.with_name("more").touch(), "VIDC-BUNDLE-EXTRA"),
        (lambda file: (file.unlink(), file.symlink_to("/etc/passwd")), "VIDC-BUNDLE-PATH"),
        (lambda file: (file.unlink(), os.mkfifo(file)), "VIDC-BUNDLE-PATH"),
    ],
    ids=["missing", "truncated", "altered", "longer", "extra", "link", "pipe"],
)
def test_a_file_that_is_not_as_it_was_is_refused(folder: Path, change: Any, code: str) -> None:
    change(folder / "load" / "vae" / "a" / "data")
    with pytest.raises(GateError) as error:
        open_portable(folder)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "VIDC-PORTABLE-NOT"),
        ("", "VIDC-BUNDLE-MALFORMED"),
        ("[]", "VIDC-BUNDLE-FIELD"),
        ('{"schema": 1, "schema": 1}', "VIDC-BUNDLE-MALFORMED"),
        ('{"schema": NaN}', "VIDC-BUNDLE-MALFORMED"),
        ("[" * 100_000, "VIDC-BUNDLE-MALFORMED"),
        (" " * (16 * 2**20 + 1), "VIDC-BUNDLE-MALFORMED"),
    ],
    ids=["none", "empty", "list", "twice", "nan", "deep", "large"],
)
def test_what_is_no_document_is_refused(folder: Path, text: str | None, code: str) -> None:
    file = folder / DOCUMENT_NAME
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(VidcError) as error:
        open_portable(folder)
    assert error.value.code == code


def test_other_sources_are_told_with_both_versions(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(handed_over, "source_digest", lambda _: "changed")
    with pytest.raises(VidcError, match=r"VIDC-PORTABLE-SOURCES.*other sources") as error:
        open_portable(folder)
    assert error.value.exit_code == 3
    assert "begin it again" in error.value.hint


def test_the_tools_that_began_a_build_are_not_needed(folder: Path, monkeypatch: Any) -> None:
    """The fixture's stages name torch alone, and nothing else is looked up."""
    asked: list[str] = []
    monkeypatch.setattr(
        handed_over, "versions", lambda *names: asked.extend(names) or {"torch": "2.99.0"}
    )
    open_portable(folder)
    assert set(asked) == {"torch"}


@given(data=st.data(), name=st.text(min_size=1), value=JSON)
def test_whatever_is_in_a_document_an_error_has_a_code(
    data: st.DataObject, name: str, value: Any, document: Document, place: Path
) -> None:
    """A value replaced, dropped or added anywhere: read as it was meant, or refused."""
    changed = deepcopy(json.loads(json.dumps(document.to_json())))
    path = data.draw(st.sampled_from(list(nodes(changed))))
    what = data.draw(st.sampled_from(["replace", "drop", "add"]))
    parent = at(changed, path[:-1])
    if what == "replace":
        parent[path[-1]] = value
    elif what == "drop":
        del parent[path[-1]]
    else:
        parent[name] = value
    (place / DOCUMENT_NAME).write_bytes(json.dumps(changed).encode())
    try:
        found = read_portable(place)
    except VidcError:
        return
    assert found.to_json() == changed


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes, place: Path) -> None:
    (place / DOCUMENT_NAME).write_bytes(data)
    with pytest.raises(GateError):
        read_portable(place)


def test_stages_are_those_of_the_settings(document: Document, settings: Settings) -> None:
    portable = {stage.name for stage in stages(settings, None) if stage.portable}
    assert document.stages.keys() == portable
