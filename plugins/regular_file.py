"""Files that are read as a whole: neither pipes nor devices."""

import errno
import stat
from pathlib import Path


def require_regular(path: Path) -> None:
    """Raises unless the path is a regular file: reading a pipe or a device may never end.

    Raises:
        OSError: the path does not exist, or is not a regular file or a link to one.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device, not a file", str(path))
