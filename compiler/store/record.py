"""The record of a result in the store, and the check of the result against it."""

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vidc.compiler.store.atomic import read_json
from vidc.compiler.store.digest import Json, sha256_file, sha256_json

SCHEMA = 1
OUTPUT = "output"
RECORD = "record.json"


class DamagedError(ValueError):
    """A result in the store differs from its record."""


@dataclass(frozen=True)
class File:
    """Size in bytes and digest of one output file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """The record of a result: components of its key, files, and times.

    Attributes:
        components: components of the key, by name.
        files: files of the output, by relative path.
        created: time of creation in seconds since the epoch.
        seconds: run time of the stage.
        vidc: version of vidc that wrote the result.
    """

    components: Mapping[str, Json]
    files: Mapping[str, File]
    created: float
    seconds: float
    vidc: str

    def to_json(self) -> dict[str, Any]:
        """Returns the record as plain JSON values."""
        return {
            "schema": SCHEMA,
            "components": self.components,
            "files": {n: {"size": f.size, "sha256": f.sha256} for n, f in self.files.items()},
            "created": self.created,
            "seconds": self.seconds,
            "vidc": self.vidc,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on anything else."""
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']}")
        return cls(
            components=dict(value["components"]),
            files={n: File(f["size"], f["sha256"]) for n, f in value["files"].items()},
            created=float(value["created"]),
            seconds=float(value["seconds"]),
            vidc=str(value["vidc"]),
        )


@dataclass(frozen=True)
class Entry:
    """A result in the store: folder, record, and time of last use (epoch seconds)."""

    path: Path
    record: Record
    last_used: float

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return str(self.record.components["stage"])

    @property
    def key(self) -> str:
        """Digest of the components."""
        return self.path.name

    @property
    def output(self) -> Path:
        """The folder of the stage's files."""
        return self.path / OUTPUT

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each output file by relative path."""
        return {name: file.sha256 for name, file in self.record.files.items()}

    @property
    def size(self) -> int:
        """Bytes of all output files."""
        return sum(file.size for file in self.record.files.values())

    def verify(self, digest: Callable[[Path], str] = sha256_file) -> Self:
        """Returns the entry after comparing the digest of every file with the record.

        Args:
            digest: returns the digest of a file.

        Raises:
            DamagedError: a digest differs, or a file cannot be read.
        """
        for name, expected in self.digests.items():
            try:
                found = digest(self.output / name)
            except OSError as error:
                raise DamagedError(f"{name} cannot be read: {error}") from error
            if found != expected:
                raise DamagedError(f"{name} has digest {found}, expected {expected}")
        return self


def open_entry(path: Path) -> Entry:
    """Returns the entry at ``path`` after comparing its files' sizes with its record.

    Raises:
        DamagedError: the record or a file is missing, a size differs, or there is a file that the
            record does not list.
    """
    try:
        record = Record.from_json(read_json(path / RECORD))
        last_used = (path / RECORD).stat().st_mtime
        if sha256_json(record.components) != path.name:
            raise DamagedError(f"{RECORD} belongs to another key")
    except (KeyError, TypeError, AttributeError, ValueError, FileNotFoundError) as error:
        raise DamagedError(f"{RECORD} is missing or unreadable: {error}") from error
    expected = {name: file.size for name, file in record.files.items()}
    found = file_sizes(path / OUTPUT)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise DamagedError(
                f"{name} has {found.get(name, 'no')} bytes, expected {expected.get(name, 'none')}"
            )
    return Entry(path, record, last_used)


def file_sizes(output: Path) -> dict[str, int]:
    """Returns the bytes of each output file; raises DamagedError on a link or special file."""
    if not output.is_dir():
        raise DamagedError(f"{output.name} is not a folder")
    sizes = {}
    for path in output.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            sizes[path.relative_to(output).as_posix()] = status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            raise DamagedError(f"{path.relative_to(output)} is not a regular file")
    return sizes
