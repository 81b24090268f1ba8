"""A lock on a file: shared by many readers, or held by one writer alone."""

import errno
import fcntl
import os
from enum import IntEnum
from pathlib import Path


class Mode(IntEnum):
    """Who else may hold the lock: other readers, or nobody."""

    SHARED = fcntl.LOCK_SH
    EXCLUSIVE = fcntl.LOCK_EX


class FileLock:
    """An advisory lock that the kernel frees when its process ends, however it ends.

    Two objects on one path exclude each other within a process as well. The file itself stays:
    removing it while another process waits on it would split the lock.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def try_acquire(self, mode: Mode) -> bool:
        """Takes the lock, or changes its mode, if nobody is in the way; else holds nothing.

        A change of mode may let others in between.
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
        """Gives the lock up for good."""
        os.close(self._descriptor)
