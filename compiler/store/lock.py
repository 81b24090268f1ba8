"""A file lock: shared by readers or exclusive to one writer."""

import errno
import fcntl
import os
from enum import IntEnum
from pathlib import Path


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
