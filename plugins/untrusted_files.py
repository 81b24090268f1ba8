"""Checks of files that anyone may have written."""

import errno
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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


def unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object as a dict: an ``object_pairs_hook`` of ``json.loads``.

    Raises:
        ValueError: a key is repeated; readers could take either value.
    """
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key[:64]!r} is there twice")
        value[key] = item
    return value
