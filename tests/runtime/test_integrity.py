import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidc.plugins.errors import GateError, UsageError
from vidc.runtime import files as files_module
from vidc.runtime import integrity
from vidc.runtime import manifest as manifest_module
from vidc.runtime.integrity import FAST_LIMIT, file_entry, verify, verify_files
from vidc.runtime.manifest import MANIFEST_NAME, BundleFile, Manifest

LARGE = "weights/transformer.safetensors"
SMALL = "engines/denoise.bin"


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def link(file: Path) -> None:
    target = file.parents[2] / "target"
    file.rename(target)
    file.symlink_to(target)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("mode", ["full", "fast", "off"])
def test_accepts_an_intact_bundle(bundle: Path, manifest: Manifest, mode: Any) -> None:
    verify(bundle, manifest, mode)


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("path", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (Path.unlink, "VIDC-BUNDLE-MISSING"),
        (truncate, "VIDC-BUNDLE-TRUNCATED"),
        (lengthen, "VIDC-BUNDLE-ALTERED"),
        (link, "VIDC-BUNDLE-PATH"),
        (pipe, "VIDC-BUNDLE-PATH"),
    ],
)
def test_names_the_damaged_file(
    bundle: Path,
    manifest: Manifest,
    mode: Any,
    path: str,
    damage: Callable[[Path], None],
    code: str,
) -> None:
    damage(bundle / path)
    with pytest.raises(GateError) as caught:
        verify(bundle, manifest, mode)
    assert caught.value.code == code
    assert path in caught.value.message
    verify(bundle, manifest, "off")


def test_a_flipped_bit_is_found_in_full(bundle: Path, manifest: Manifest) -> None:
    flip(bundle / LARGE)
    with pytest.raises(GateError, match=LARGE) as caught:
        verify(bundle, manifest, "full")
    assert caught.value.code == "VIDC-BUNDLE-ALTERED"


def test_fast_mode_hashes_only_small_files(bundle: Path, manifest: Manifest) -> None:
    assert manifest.files[LARGE].size > FAST_LIMIT
    flip(bundle / LARGE)
    verify(bundle, manifest, "fast")
    flip(bundle / SMALL)
    with pytest.raises(GateError, match=SMALL):
        verify(bundle, manifest, "fast")


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("path", ["notes.txt", "weights/.hidden", "golden/deep/manifest.json"])
def test_an_extra_file_is_refused(bundle: Path, manifest: Manifest, mode: Any, path: str) -> None:
    (bundle / path).parent.mkdir(exist_ok=True)
    (bundle / path).touch()
    with pytest.raises(GateError, match=path) as caught:
        verify(bundle, manifest, mode)
    assert caught.value.code == "VIDC-BUNDLE-EXTRA"


def test_an_extra_link_to_a_folder_is_refused(bundle: Path, manifest: Manifest) -> None:
    (bundle / "loop").symlink_to(bundle)
    with pytest.raises(GateError, match="VIDC-BUNDLE-PATH"):
        verify(bundle, manifest, "fast")


def test_refuses_an_unknown_mode(bundle: Path, manifest: Manifest) -> None:
    mode: Any = "fats"
    with pytest.raises(UsageError, match="VIDC-BUNDLE-VERIFY"):
        verify(bundle, manifest, mode)


@pytest.fixture
def chunked(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> BundleFile:
    """The entry of ``LARGE`` where chunks are of a few bytes; the last one is shorter."""
    monkeypatch.setattr(integrity, "_READ", 2**14)
    for module in (files_module, integrity, manifest_module):
        monkeypatch.setattr(module, "CHUNK_BYTES", 2**16)
    return file_entry(bundle / LARGE)


def test_a_large_file_has_a_digest_for_each_chunk(bundle: Path, chunked: BundleFile) -> None:
    data = (bundle / LARGE).read_bytes()
    parts = [data[start : start + 2**16] for start in range(0, len(data), 2**16)]
    assert len(parts) == 17
    assert len(parts[-1]) == 1
    assert chunked.sha256 == hashlib.sha256(data).hexdigest()
    assert chunked.chunks == tuple(hashlib.sha256(part).hexdigest() for part in parts)


def test_a_file_of_one_chunk_has_its_own_digest_alone(bundle: Path, chunked: BundleFile) -> None:
    (bundle / SMALL).write_bytes(b"x" * 2**16)
    assert file_entry(bundle / SMALL).chunks == ()


@pytest.mark.parametrize("at", [0, 5 * 2**16 + 1, 2**20])
def test_a_changed_chunk_is_found(
    bundle: Path, manifest: Manifest, chunked: BundleFile, at: int
) -> None:
    files = {**manifest.files, LARGE: chunked}
    verify_files(bundle, MANIFEST_NAME, files, "full")
    data = bytearray((bundle / LARGE).read_bytes())
    data[at] ^= 1
    (bundle / LARGE).write_bytes(data)
    with pytest.raises(GateError, match=LARGE) as caught:
        verify_files(bundle, MANIFEST_NAME, files, "full")
    assert caught.value.code == "VIDC-BUNDLE-ALTERED"
    start = at // 2**16 * 2**16
    assert (f"from byte {start} on" in caught.value.message) == (start > 0)
