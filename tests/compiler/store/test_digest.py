import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.store import digest
from vidc.compiler.store.digest import DigestMemory, canonical_json, sha256_file, sha256_json

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
) | st.text()
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(v) for v in value] if isinstance(value, list) else value


@given(VALUES)
def test_canonical_json_reads_back_and_ignores_the_order_of_keys(value: Any) -> None:
    text = canonical_json(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert canonical_json(shuffled(value)) == text
    assert canonical_json(json.loads(text)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_written_by_repr(value: float) -> None:
    assert canonical_json([value]) == f"[{value!r}]"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_refuses_values_outside_json(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"scale": [value]})


def test_values_equal_in_python_have_different_json() -> None:
    assert len({sha256_json(value) for value in (1, 1.0, True, "1")}) == 4
    assert sha256_json(0.0) != sha256_json(-0.0)


def test_a_folder_is_known_by_paths_and_contents(tmp_path: Path) -> None:
    memory = DigestMemory(tmp_path / "memory")

    def tree(name: str, files: dict[str, str]) -> str:
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return memory.path(tmp_path / name)

    one = tree("one", {"a": "x", "b/c": "y"})
    assert tree("same", {"b/c": "y", "a": "x"}) == one
    assert tree("moved", {"a": "x", "b.c": "y"}) != one
    assert tree("swapped", {"a": "y", "b/c": "x"}) != one
    assert tree("more", {"a": "x", "b/c": "y", "d": ""}) != one


def test_a_link_counts_as_what_it_points_at(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("weights")
    for name in ("real", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "model").write_text("weights")
    (tmp_path / "linked" / "model").symlink_to(tmp_path / "blob")
    memory = DigestMemory(tmp_path / "memory")
    assert memory.path(tmp_path / "linked") == memory.path(tmp_path / "real")


def test_a_pipe_is_refused_instead_of_waited_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        DigestMemory(tmp_path / "memory").path(tmp_path / "pipe")


class Weights:
    """A file that counts as large, last written long ago, and how often it was hashed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "weights"
        self.memory = DigestMemory(folder / "memory")
        self.hashed = 0
        monkeypatch.setattr(digest, "REMEMBER_FROM", 4)
        monkeypatch.setattr(digest, "sha256_file", self._hash)
        self.write(b"aaaa")

    def _hash(self, path: Path) -> str:
        self.hashed += 1
        return sha256_file(path)

    def write(self, content: bytes, mtime: float = 1e9) -> None:
        self.path.write_bytes(content)
        os.utime(self.path, (mtime, mtime))

    def digest(self) -> str:
        self.hashed = 0
        return self.memory.path(self.path)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    return Weights(tmp_path, monkeypatch)


def test_a_large_file_is_hashed_once(weights: Weights) -> None:
    first = weights.digest()
    assert weights.hashed == 1
    assert weights.digest() == first == sha256_file(weights.path)
    assert weights.hashed == 0


def test_a_change_of_time_size_or_inode_forgets_the_digest(weights: Weights) -> None:
    first = weights.digest()
    weights.write(b"bbbb", mtime=1e9 + 1)
    second = weights.digest()
    weights.write(b"bbbbb", mtime=1e9 + 1)
    third = weights.digest()
    replacement = weights.path.with_name("new")
    replacement.write_bytes(b"ccccc")
    os.utime(replacement, (1e9 + 1, 1e9 + 1))
    replacement.replace(weights.path)
    assert len({first, second, third, weights.digest()}) == 4


def test_a_file_still_being_written_is_not_remembered(weights: Weights) -> None:
    weights.path.write_bytes(b"fresh")
    weights.digest()
    weights.digest()
    assert weights.hashed == 1


def test_unwritable_digest_cache_is_ignored(weights: Weights) -> None:
    weights.path.with_name("memory").write_text("a file")
    assert weights.digest() == weights.digest() == sha256_file(weights.path)
    assert weights.hashed == 1


def test_damaged_digest_cache_is_ignored(weights: Weights) -> None:
    first = weights.digest()
    for path in (weights.path.parent / "memory").iterdir():
        path.write_text("{")
    assert weights.digest() == first
    assert weights.hashed == 1
