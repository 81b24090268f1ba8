"""Record of a validated bundle's manifest."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from json_leaves import changed, leaves

from vidc.plugins.errors import GateError, VidcError
from vidc.runtime.files import Files
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import Manifest, read_manifest, write_manifest
from vidc.runtime.record import RECORD_NAME, Record, compare_record

COVERED = (
    "name", "preset", "family", "program", "spec", "config", "target", "engines", "weights",
    "plugin_abi", "calibration", "tools", "validation", "stages",
)  # fmt: skip


@pytest.fixture
def recorded(bundle: Path, manifest: Manifest) -> Path:
    """A bundle with a record."""
    Record.of(manifest).write(bundle)
    entry = file_entry(bundle / RECORD_NAME)
    write_manifest(replace(manifest, files={**manifest.files, RECORD_NAME: entry}), bundle)
    return bundle


def compare(bundle: Path, manifest: Manifest) -> None:
    with Files(bundle, manifest.files) as files:
        compare_record(files, manifest)


def test_a_manifest_is_its_record(recorded: Path) -> None:
    compare(recorded, read_manifest(recorded))


def test_every_field_but_files_and_signature_is_recorded(manifest: Manifest) -> None:
    record = Record.of(manifest)
    assert {*record.fields, "engines"} == {*COVERED}
    assert {*manifest.to_json()} == {*COVERED, "schema", "files", "signature"}
    assert record.engines.keys() == manifest.engines.keys()


def test_every_changed_leaf_is_refused(recorded: Path) -> None:
    text = (recorded / "manifest.json").read_text()
    document = json.loads(text)
    found = []
    for path in leaves(document):
        if path[0] not in COVERED:
            continue
        (recorded / "manifest.json").write_text(json.dumps(changed(document, path)))
        with pytest.raises(VidcError) as caught:
            compare(recorded, read_manifest(recorded))
        found.append(caught.value.code)  # The reader refuses some by itself.
    assert found.count("VIDC-BUNDLE-RECORD") > 60


def test_names_what_changed(recorded: Path) -> None:
    document = read_manifest(recorded)
    engine = replace(document.engines["denoise"], options={"threads": 2})
    spec = replace(document.spec, sigmas=(1.0, 0.5))
    other = replace(document, spec=spec, engines={"denoise": engine, "more": engine})
    with pytest.raises(GateError, match="VIDC-BUNDLE-RECORD") as caught:
        compare(recorded, other)
    assert "spec, engine denoise, engine more changed" in caught.value.message


def test_an_edited_record_is_refused(recorded: Path) -> None:
    file = recorded / RECORD_NAME
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    document = read_manifest(recorded)
    with pytest.raises(GateError, match="VIDC-BUNDLE-ALTERED"):
        compare(recorded, document)
    files = {**document.files, RECORD_NAME: file_entry(file)}
    with pytest.raises(GateError, match="VIDC-BUNDLE-RECORD"):
        compare(recorded, replace(document, files=files))


def test_a_bundle_without_a_record_is_refused(bundle: Path, manifest: Manifest) -> None:
    with pytest.raises(GateError, match="VIDC-BUNDLE-RECORD"):
        compare(bundle, manifest)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1, "fields": {}}', "[" * 10**5])
def test_a_malformed_record_has_a_code(bundle: Path, manifest: Manifest, text: str) -> None:
    (bundle / RECORD_NAME).write_text(text)
    files = {**manifest.files, RECORD_NAME: file_entry(bundle / RECORD_NAME)}
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-(MALFORMED|FIELD)"):
        compare(bundle, replace(manifest, files=files))
