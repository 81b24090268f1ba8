import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.plugins.errors import GateError, UnavailableError, UsageError, VidcError
from vidc.runtime.document import MAX_DOCUMENT_BYTES, check_path
from vidc.runtime.manifest import (
    CHUNK_BYTES,
    MANIFEST_NAME,
    Manifest,
    read_manifest,
    write_manifest,
)
from vidc.runtime.program import PROGRAMS
from vidc.runtime.programs.base import Session
from vidc.runtime.programs.spec import ProgramSpec

FREE = {("config",), ("calibration",)}
"""Free JSON: any change below these, and below source and options, is allowed."""

OPTIONAL = {"compute_capabilities", "decoders", "signature"}
"""Fields that have a value where they are left out."""

MAPS = {("engines",), ("weights",), ("files",), ("tools",), ("stages",)}
"""Objects whose keys are names, not fields."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="session")
def document(manifest: Manifest) -> dict[str, Any]:
    return json.loads(json.dumps(manifest.to_json()))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundle")


def read_text(folder: Path, text: str | bytes) -> Manifest:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    (folder / MANIFEST_NAME).write_bytes(data)
    return read_manifest(folder)


def is_free(path: tuple[Any, ...]) -> bool:
    return path[:1] in FREE or (
        len(path) > 2 and path[0] in ("engines", "weights") and path[2] in ("options", "source")
    )


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in a document, outermost first."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from nodes(value[key], (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from nodes(item, (*path, i))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def json_type(value: Any) -> type:
    return float if type(value) is int else type(value)


def test_a_manifest_survives_the_round_trip(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(manifest, tmp_path)
    assert read_manifest(tmp_path) == manifest


def test_writing_does_not_depend_on_the_order_of_keys(manifest: Manifest, tmp_path: Path) -> None:
    write_manifest(manifest, tmp_path)
    first = (tmp_path / MANIFEST_NAME).read_bytes()
    backwards = dict(reversed(manifest.files.items()))
    write_manifest(replace(manifest, files=backwards), tmp_path)
    assert (tmp_path / MANIFEST_NAME).read_bytes() == first


def test_nan_is_not_written(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_manifest(replace(manifest, config={"shift": float("nan")}), tmp_path)
    assert not (tmp_path / MANIFEST_NAME).exists()


@given(data=st.data())
def test_refuses_a_missing_field(
    data: st.DataObject, document: dict[str, Any], folder: Path
) -> None:
    mutated = deepcopy(document)
    path = data.draw(
        st.sampled_from(
            [
                p
                for p in nodes(document)
                if p
                and isinstance(p[-1], str)
                and not is_free(p[:-1])
                and p[:-1] not in MAPS
                and p[-1] not in OPTIONAL
            ]
        )
    )
    del at(mutated, path[:-1])[path[-1]]
    with pytest.raises(GateError, match="VIDC-BUNDLE-FIELD"):
        read_text(folder, json.dumps(mutated))


@given(data=st.data(), name=st.text(), value=JSON)
def test_an_unknown_field_is_refused_by_name(
    data: st.DataObject, name: str, value: Any, document: dict[str, Any], folder: Path
) -> None:
    mutated = deepcopy(document)
    path = data.draw(
        st.sampled_from(
            [
                p
                for p in nodes(document)
                if isinstance(at(document, p), dict) and not is_free(p) and p not in MAPS
            ]
        )
    )
    at(mutated, path)[f"new {name}"] = value
    with pytest.raises(GateError) as caught:
        read_text(folder, json.dumps(mutated))
    assert caught.value.code in ("VIDC-BUNDLE-FIELD", "VIDC-BUNDLE-MALFORMED")
    if caught.value.code == "VIDC-BUNDLE-FIELD":
        assert re.search("unknown field .new ", caught.value.message)


@given(data=st.data(), value=JSON)
def test_a_value_of_another_type_is_refused(
    data: st.DataObject, value: Any, document: dict[str, Any], folder: Path
) -> None:
    path = data.draw(
        st.sampled_from(
            [
                p
                for p in nodes(document)
                if p and not is_free(p[:-1]) and json_type(at(document, p)) is not json_type(value)
            ]
        )
    )
    mutated = deepcopy(document)
    at(mutated, path[:-1])[path[-1]] = value
    nullable = ("compute_capability", "torch", "report", "calibration", "signature")
    if value is None and path[-1] in nullable:
        assert isinstance(read_text(folder, json.dumps(mutated)), Manifest)
        return
    with pytest.raises(GateError):
        read_text(folder, json.dumps(mutated))


@given(data=st.data(), value=JSON)
def test_changed_values_raise_only_coded_errors(
    data: st.DataObject, value: Any, document: dict[str, Any], folder: Path
) -> None:
    path = data.draw(st.sampled_from([p for p in nodes(document) if p]))
    mutated = deepcopy(document)
    at(mutated, path[:-1])[path[-1]] = value
    try:
        manifest = read_text(folder, json.dumps(mutated))
    except VidcError:
        return
    write_manifest(manifest, folder)
    assert read_manifest(folder) == manifest


@given(data=st.data())
def test_damaged_text_raises_only_our_errors(
    data: st.DataObject, document: dict[str, Any], folder: Path
) -> None:
    text = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(text)))
    with suppress(VidcError):
        read_text(folder, bytes(text[:length]))


@given(st.binary(max_size=64))
def test_foreign_bytes_are_refused(folder: Path, data: bytes) -> None:
    with pytest.raises(GateError):
        read_text(folder, data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": 2, "config": ' + "[" * 40 + "]" * 40 + "}", "deeper than 32"),
        ('{"schema": 2, "schema": 2}', "'schema' is there twice"),
        ('{"schema": 2, "config": {"a": {"b": 1, "b": 2}}}', "'b' is there twice"),
        ('{"schema": 2, "config": NaN}', "NaN is not a finite"),
        ('{"schema": 2, "config": -Infinity}', "-Infinity is not a finite"),
        ('{"schema": 2, "config": 1e999}', "1e999 is not a finite"),
        ('{"schema": ' + "9" * 5000 + "}", "does not fit 64 bits"),
        ('{"schema": 2, "name": "\\ud800"}', "surrogates"),
        (b'{"schema": 2, "name": "\xff"}', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"\x80\x04K\x01.", "utf-8"),
        (" " * (MAX_DOCUMENT_BYTES + 1), "larger than"),
    ],
)
def test_rejects_json_out_of_bounds(folder: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(GateError, match=message) as caught:
        read_text(folder, text)
    assert caught.value.code == "VIDC-BUNDLE-MALFORMED"


def test_a_newer_schema_says_which_one_is_supported(document: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UnavailableError, match="schema 3; this vidc reads schema 2") as caught:
        read_text(folder, json.dumps(document | {"schema": 3, "novelty": True}))
    assert caught.value.code == "VIDC-BUNDLE-SCHEMA"
    assert "upgrade vidc" in caught.value.hint


def test_an_older_schema_asks_for_another_build(document: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UnavailableError, match="schema 1; this vidc reads schema 2") as caught:
        read_text(folder, json.dumps(document | {"schema": 1}))
    assert caught.value.code == "VIDC-BUNDLE-SCHEMA"
    assert caught.value.hint == "build the bundle again with this vidc"


def test_a_program_that_is_not_installed_is_named(document: dict[str, Any], folder: Path) -> None:
    with pytest.raises(UnavailableError, match="program 'opera'") as caught:
        read_text(folder, json.dumps(document | {"program": "opera"}))
    assert caught.value.code == "VIDC-BUNDLE-PROGRAM"


@dataclass(frozen=True)
class EchoSpec(ProgramSpec):
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length = {self.length} is below 1")

    @property
    def components(self) -> tuple[str, ...]:
        return ("denoise",)


class Echo(Session[EchoSpec]):
    Spec = EchoSpec


@pytest.fixture
def echo(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A manifest of a program that vidc does not bring."""
    monkeypatch.setitem(PROGRAMS, "echo", "echo_program:Echo")
    monkeypatch.setitem(sys.modules, "echo_program", SimpleNamespace(Echo=Echo))
    return document | {"program": "echo", "spec": {"length": 3}}


def test_the_program_of_a_manifest_reads_its_spec(echo: dict[str, Any], folder: Path) -> None:
    assert read_text(folder, json.dumps(echo)).spec == EchoSpec(3)
    for spec in ({"length": 0}, {"length": "3"}, {"length": 3, "width": 1}, {}, None, []):
        with pytest.raises(GateError, match=r"VIDC-BUNDLE-FIELD.*manifest\.spec"):
            read_text(folder, json.dumps(echo | {"spec": spec}))


def test_an_installed_package_brings_a_program(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site" / "echo-1.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "echo-1.dist-info" / "METADATA").write_text("Name: echo\nVersion: 1\n")
    points = "[vidc.programs]\necho = echo_program:Echo\n"
    (tmp_path / "site" / "echo-1.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setitem(sys.modules, "echo_program", SimpleNamespace(Echo=Echo))
    read = read_text(tmp_path, json.dumps(document | {"program": "echo", "spec": {"length": 3}}))
    assert read.spec == EchoSpec(3)


@pytest.mark.parametrize("schema", [0, -1, True, "1", 1.0, None])
def test_refuses_an_invalid_schema_number(
    document: dict[str, Any], folder: Path, schema: Any
) -> None:
    with pytest.raises(GateError, match="VIDC-BUNDLE-FIELD"):
        read_text(folder, json.dumps(document | {"schema": schema}))


def change(document: dict[str, Any], where: str, value: Any) -> str:
    mutated = deepcopy(document)
    *parents, last = (int(key) if key.isdigit() else key for key in where.split("/"))
    at(mutated, tuple(parents))[last] = value
    return json.dumps(mutated)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("spec/window", 5),
        ("spec/batch", 0),
        ("spec/sink", -1),
        ("spec/grid", [2, 2]),
        ("spec/grid", [1, 2, 1]),
        ("spec/sigmas", [1.0]),
        ("spec/context_timestep", -1.0),
        ("spec/block", 2**40),
        ("target/compute_capability", "sm_90"),
        ("target/memory_bytes", -1),
        ("engines/denoise/loader", "../evil"),
        ("engines/denoise/loader", "os.path"),
        ("engines/denoise/loader", "aoti\n"),
        ("engines/denoise/backend", ""),
        ("engines/denoise/files", []),
        ("engines/denoise/files", ["unlisted.onnx"]),
        ("engines/denoise/signature/0/shape", [0]),
        ("engines/denoise/signature/0/shape", [-3]),
        ("engines/denoise/signature/0/shape", [2**31, 2**31]),
        ("engines/denoise/signature/0/shape", [1] * 9),
        ("engines/denoise/signature/0/shape", [True]),
        ("engines/denoise/signature/0/dtype", "object"),
        ("engines/denoise/signature/0/role", "sink"),
        ("engines/denoise/signature/0/name", "flow"),
        ("engines/denoise/signature/0/name", "a b"),
        ("engines/denoise/signature/0/access", "read"),
        ("engines/denoise/signature/0/access", None),
        ("engines/denoise/signature/1/access", None),
        ("weights/transformer/path", "weights/other.safetensors"),
        ("validation/report", "elsewhere.html"),
        ("files/manifest.json", {"size": 1, "sha256": "0" * 64, "chunks": []}),
        ("files/report.html", {"size": -1, "sha256": "0" * 64, "chunks": []}),
        ("files/report.html", {"size": 1, "sha256": "0" * 63, "chunks": []}),
        ("files/report.html", {"size": 1, "sha256": "A" * 64, "chunks": []}),
        ("files/report.html", {"size": 1, "sha256": "0" * 64, "chunks": ["0" * 64]}),
        ("files/report.html", {"size": CHUNK_BYTES, "sha256": "0" * 64, "chunks": ["0" * 64]}),
        ("files/report.html", {"size": CHUNK_BYTES + 1, "sha256": "0" * 64, "chunks": []}),
        ("files/report.html", {"size": CHUNK_BYTES + 1, "sha256": "0" * 64, "chunks": ["0" * 64]}),
        (
            "files/report.html",
            {"size": CHUNK_BYTES + 1, "sha256": "0" * 64, "chunks": ["0" * 64, "1" * 63]},
        ),
        ("signature", "ed25519:0"),
    ],
)
def test_a_value_out_of_range_is_refused(
    document: dict[str, Any], folder: Path, where: str, value: Any
) -> None:
    with pytest.raises(GateError) as caught:
        read_text(folder, change(document, where, value))
    assert caught.value.code == "VIDC-BUNDLE-FIELD"
    assert caught.value.message.startswith("manifest")


BAD_PATHS = [
    "",
    ".",
    "..",
    "../x",
    "a/../../x",
    "a/../x",
    "/etc/passwd",
    "//host/x",
    "./x",
    "a//x",
    "a/",
    "a\\x",
    "..\\x",
    "C:x",
    "c:/x",
    "x\0",
    "x\ny",
    "x" * 256,
]


@pytest.mark.parametrize("path", BAD_PATHS)
@pytest.mark.parametrize("where", ["files", "engine", "weights", "report"])
def test_a_path_that_leaves_the_bundle_is_refused(
    document: dict[str, Any], folder: Path, where: str, path: str
) -> None:
    mutated = deepcopy(document)
    if where == "files":
        mutated["files"][path] = mutated["files"]["report.html"]
    elif where == "engine":
        mutated["engines"]["denoise"]["files"] = [path]
    elif where == "weights":
        mutated["weights"]["transformer"]["path"] = path
    else:
        mutated["validation"]["report"] = path
    with pytest.raises(GateError) as caught:
        read_text(folder, json.dumps(mutated))
    assert caught.value.code == "VIDC-BUNDLE-PATH"


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.c", "~", "C:", "\\"]), max_size=5))
def test_a_path_that_passes_stays_inside(parts: list[str]) -> None:
    path = "/".join(parts)
    try:
        check_path(path)
    except GateError:
        return
    resolved = os.path.normpath(os.path.join("/bundle", path))
    assert resolved.startswith("/bundle/")
    assert resolved == f"/bundle/{path}"


@pytest.mark.parametrize("path", ["report.html", "engines", MANIFEST_NAME])
def test_a_symbolic_link_is_refused(bundle: Path, path: str) -> None:
    (bundle / path).rename(bundle.parent / "moved")
    (bundle / path).symlink_to(bundle.parent / "moved")
    with pytest.raises(GateError, match="symbolic link") as caught:
        read_manifest(bundle)
    assert caught.value.code == "VIDC-BUNDLE-PATH"


def test_the_folder_itself_may_be_a_link(bundle: Path, manifest: Manifest) -> None:
    link = bundle.parent / "link"
    link.symlink_to(bundle)
    assert read_manifest(link) == manifest


def test_no_such_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder") as caught:
        read_manifest(tmp_path / "nowhere")
    assert caught.value.code == "VIDC-BUNDLE-NOT"


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a bundle") as caught:
        read_manifest(tmp_path)
    assert caught.value.code == "VIDC-BUNDLE-NOT"


def test_a_manifest_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST_NAME)
    with pytest.raises(GateError, match="VIDC-BUNDLE-MALFORMED"):
        read_manifest(tmp_path)
