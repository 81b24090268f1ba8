"""Untrusted JSON documents that list a folder's files: bounded parsing and checked paths."""

import errno
import json
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.plugins.errors import GateError
from vidc.plugins.untrusted_files import unique_keys
from vidc.runtime.strict import field_error

MAX_DOCUMENT_BYTES = 16 * 2**20

_MAX_DEPTH = 32
_MAX_INT = 2**63 - 1
_MAX_PATH_PART = 255
AGAIN = "copy the bundle again from where it was built, or build it again"
"""Hint about a damaged bundle."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:")


def check_path(path: str) -> None:
    """Refuses a path that is not relative, normalized and inside the bundle.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``.
    """
    pure = PurePosixPath(path)
    if (
        path in ("", ".")
        or pure.is_absolute()
        or ".." in pure.parts
        or str(pure) != path
        or "\\" in path
        or _DRIVE.match(path)
        or _UNPRINTABLE.search(path)
        or any(len(part.encode()) > _MAX_PATH_PART for part in pure.parts)
    ):
        raise GateError(
            "VIDC-BUNDLE-PATH",
            f"{path[:_MAX_PATH_PART]!r} is not a relative, normalized path inside the bundle",
            "do not use this bundle unless you know who made it; " + AGAIN,
        )


def check_sha256(digest: str) -> None:
    """Raises ValueError unless ``digest`` is a SHA-256 in lower-case hexadecimal."""
    if _SHA256.fullmatch(digest) is None:
        raise ValueError(f"{digest[:80]!r} is not a SHA-256")


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 (lower-case hexadecimal) of one file."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size = {self.size} is negative")
        check_sha256(self.sha256)


def read_document(folder: Path, name: str) -> tuple[int, dict[str, Any]]:
    """Reads a document and returns its schema number and its JSON object.

    Raises:
        FileNotFoundError: the file does not exist.
        GateError: ``VIDC-BUNDLE-MALFORMED``, not JSON within bounds; ``VIDC-BUNDLE-FIELD``, not
            an object with a schema number; ``VIDC-BUNDLE-PATH``, a symbolic link;
            ``VIDC-BUNDLE-UNREADABLE``.
    """
    refuse_links(folder, name)
    try:
        data = _read_bytes(folder / name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(folder / name, error) from error
    except ValueError as error:
        raise _malformed(name, str(error)) from error
    return parse_document(name, data)


def parse_document(name: str, data: bytes) -> tuple[int, dict[str, Any]]:
    """Returns a document's schema number and its JSON object; raises as ``read_document``."""
    try:
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"it is larger than {MAX_DOCUMENT_BYTES} bytes")
        value = _parse(data)
    except RecursionError:
        raise _malformed(name, "it is nested too deeply") from None
    except ValueError as error:
        raise _malformed(name, str(error)[:200]) from error
    where = name.removesuffix(".json")
    if not isinstance(value, dict):
        raise field_error(where, f"expected an object, found {type(value).__name__}")
    schema = value.pop("schema", None)
    if type(schema) is not int or schema < 1:
        raise field_error(f"{where}.schema", f"expected a number, found {str(schema)[:40]!r}")
    return schema, value


def refuse_links(bundle: Path, path: str) -> None:
    """Refuses a path with a symbolic link in any part below the bundle's folder.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``, or ``VIDC-BUNDLE-UNREADABLE``.
    """
    file = bundle
    for part in PurePosixPath(path).parts:
        file /= part
        try:
            linked = file.is_symlink()
        except OSError as error:
            raise unreadable(file, error) from error
        if linked:
            raise is_link(file)


def is_link(file: Path) -> GateError:
    """Returns a ``VIDC-BUNDLE-PATH`` error for a symbolic link."""
    return GateError(
        "VIDC-BUNDLE-PATH",
        f"{file} is a symbolic link; a bundle holds plain files alone",
        "copy the bundle with links resolved (cp -rL)",
    )


def unreadable(file: Path, error: OSError) -> GateError:
    """Returns a ``VIDC-BUNDLE-UNREADABLE`` error for a file that cannot be read."""
    return GateError(
        "VIDC-BUNDLE-UNREADABLE",
        f"{file} cannot be read: {error.strerror}",
        "check the file's permissions, the disk and the limit of open files (ulimit -n)",
    )


def _read_bytes(file: Path) -> bytes:
    # Does not wait for the writer of a pipe.
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise ValueError("it is a socket or a device, not a file") from error
        raise
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a file")
        return stream.read(MAX_DOCUMENT_BYTES + 1)


def _malformed(name: str, what: str) -> GateError:
    return GateError("VIDC-BUNDLE-MALFORMED", f"{name} cannot be read: {what}", AGAIN)


def _parse(data: bytes) -> Any:
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=unique_keys,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_number,
    )
    _check_plain(value, _MAX_DEPTH)
    return value


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else _MAX_INT + 1
    if abs(value) > _MAX_INT:
        raise ValueError(f"the integer {digits[:24]} does not fit 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:24]} is not a finite number")
    return value


def _check_plain(value: Any, depth: int) -> None:
    """Bounds the nesting depth and refuses strings with lone surrogates."""
    if depth == 0:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode()
            _check_plain(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, depth - 1)
