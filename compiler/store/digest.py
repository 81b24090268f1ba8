"""JSON values by dotted name, and SHA-256 of JSON values, files and folders."""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from vidc.compiler.store.atomic import read_json, write_json

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

REMEMBER_FROM = 1 << 20
"""Size in bytes from which digests are cached."""

SETTLED_SECONDS = 2.0
"""Minimum age of a change: two writes within one clock tick have the same mtime."""


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested mappings by dotted names; lists are leaves."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def canonical_json(value: Json) -> str:
    """Returns ``value`` as ASCII JSON with sorted keys, no spaces, and floats by ``repr``.

    Raises:
        ValueError: NaN or infinity.
        TypeError: not a JSON value.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_json(value: Json) -> str:
    """Returns the hex SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Returns the hex SHA-256 of a regular file; ValueError on a device, pipe or folder."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields every file under ``root`` with its relative POSIX path; follows links."""
    for folder, _, names in os.walk(root, followlinks=True, onerror=_raise):
        for name in names:
            path = Path(folder, name)
            yield path.relative_to(root).as_posix(), path


def _raise(error: OSError) -> None:
    raise error


def sha256_tree(digests: Mapping[str, str]) -> str:
    """Returns a folder's digest from its files' digests by relative path; ignores empty folders."""
    return sha256_json(digests)


class DigestMemory:
    """Digests of files outside the store, cached on disk for large files.

    A cached digest is valid while the file's absolute path, size, mtime and inode are unchanged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, path: Path) -> str:
        """Returns the digest of a file, or of a folder from its files' paths and digests.

        Raises:
            OSError: the path cannot be read.
            ValueError: the path is neither a file nor a folder.
        """
        if path.is_dir():
            return sha256_tree({name: self.file(file) for name, file in _files(path)})
        return self.file(path)

    def match(self, folder: Path, files: Mapping[str, str]) -> bool:
        """Returns True if the files of a folder, by relative path, have these digests."""
        try:
            return all(self.file(folder / path) == digest for path, digest in files.items())
        except (OSError, ValueError):
            return False

    def file(self, path: Path) -> str:
        """Returns the digest of a file; raises as ``path``."""
        before = path.stat()
        if before.st_size < REMEMBER_FROM:
            return sha256_file(path)
        state: dict[str, Json] = {
            "path": os.path.abspath(path),
            "size": before.st_size,
            "mtime_ns": before.st_mtime_ns,
            "inode": before.st_ino,
        }
        memory = self._folder / f"{sha256_json(state['path'])}.json"
        remembered = read_json(memory)
        if isinstance(remembered, dict) and remembered.get("state") == state:
            return str(remembered["sha256"])
        settled = time.time() - before.st_mtime > SETTLED_SECONDS
        digest = sha256_file(path)
        after = path.stat()
        unchanged = (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        if settled and unchanged:
            # The cache is optional.
            with contextlib.suppress(OSError):
                write_json(memory, {"state": state, "sha256": digest})
        return digest
