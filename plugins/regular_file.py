"""Files that are read as a whole: neither pipes nor devices."""

import errno
import stat
from pathlib import Path


def require_regular(path: Path) -> None:
    """Refuses a pipe, a socket or a device: a reader would wait for it or read without end.

    Raises:
        OSError: it is none of a plain file and a link to one, or it is not there.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
