"""Atomic changes of files and folders, and locks."""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def read_json(path: Path) -> Any:
    """Returns the JSON value in ``path``, None if it cannot be read or parsed."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Writes ``path`` atomically and creates its folder; readers see the old or the new value."""
    write_bytes(path, json.dumps(value, indent=1).encode())


def write_bytes(path: Path, data: bytes, beside: Path | None = None) -> None:
    """Writes bytes to ``path`` atomically and creates its folder; readers see old or new bytes.

    Args:
        path: the file.
        data: its contents.
        beside: path beside which the temporary file, the draft, is written; ``path`` by default.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    place = beside or path
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def drafts(folder: Path, name: str = "*") -> Iterator[Path]:
    """Yields the drafts of ``write_bytes`` in a folder, left by killed processes or in progress."""
    return folder.glob(f".{name}.{'[0-9a-f]' * 32}")


def exchange(left: Path, right: Path) -> bool:
    """Exchanges two folders atomically; returns False if the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, names = ctypes.c_int(_AT_FDCWD), (os.fsencode(left), os.fsencode(right))
    if rename(here, names[0], here, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(left), None, str(right))


def sync(path: Path) -> None:
    """Waits until a file's or a folder's contents are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Waits until every file and folder under ``root`` is on disk."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))


class Mode(IntEnum):
    """Shared (readers) or exclusive (one writer)."""

    SHARED = fcntl.LOCK_SH
    EXCLUSIVE = fcntl.LOCK_EX


class FileLock:
    """An advisory lock that the kernel releases when its process ends.

    Two objects on one path also exclude each other within a process. The file stays: removing it
    while another process waits would split the lock.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def try_acquire(self, mode: Mode) -> bool:
        """Acquires the lock or changes its mode without waiting; on failure it is not held.

        A change of mode is not atomic.
        """
        try:
            fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                return False
            raise
        return True

    def close(self) -> None:
        """Releases the lock permanently."""
        os.close(self._descriptor)
