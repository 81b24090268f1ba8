"""Sizes on disk, and errors of the store's disk, separate from errors of a stage."""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from vidc.plugins.errors import BuildError, VidcError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
UNUSABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EIO, errno.ENOLCK}
)
OTHER_CACHE = "free some space (`vidc cache prune`) or choose another cache folder with VIDC_CACHE"
FULL_BELOW = 1 << 20
"""Free bytes below which a failed write counts as a full disk: some libraries hide errno."""


def byte_size(count: int) -> str:
    """Formats bytes in the largest decimal unit that they fill, such as ``1.50 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def byte_sizes(sizes: Mapping[str, int]) -> str:
    """Formats a sum and its parts, such as ``3.50 MB: weights 3.00 MB, engines 500.00 kB``."""
    parts = ", ".join(f"{name} {byte_size(count)}" for name, count in sizes.items())
    return f"{byte_size(sum(sizes.values()))}: {parts}"


@contextmanager
def store_errors(root: Path) -> Iterator[None]:
    """Turns OSErrors of the store's own reads and writes into coded errors.

    Raises:
        BuildError: ``VIDC-BUILD-DISK``, the disk is full or the folder cannot be used.
        OSError: any other, unchanged.
    """
    try:
        yield
    except OSError as error:
        # Making a folder fails with ENOENT in /proc, and with EEXIST over a dangling link.
        unmade = error.errno in (errno.ENOENT, errno.EEXIST) and not root.is_dir()
        if error.errno in UNUSABLE or unmade:
            raise BuildError(
                "VIDC-BUILD-DISK",
                f"cannot write to the cache {root}: {error}",
                "set VIDC_CACHE to a folder that this user can write",
            ) from error
        if error.errno in FULL:
            message = f"cannot write to the cache {root}: {error}"
            raise _disk_error(root, message, OTHER_CACHE) from error
        raise


@contextmanager
def stage_errors(
    stage: str, root: Path, draft: Path, needed: int | None, remedy: str
) -> Iterator[None]:
    """Turns exceptions of a stage's run or of publishing into errors that name the stage.

    Args:
        stage: its name.
        root: a folder on the disk that it writes to.
        draft: the folder the stage writes to.
        needed: bytes of the stage's last output, if known.
        remedy: the hint for a full disk, such as ``OTHER_CACHE``.

    Raises:
        BuildError: ``VIDC-BUILD-DISK`` if the disk is full or not writable, else
            ``VIDC-BUILD-STAGE``. A VidcError passes unchanged.
    """
    try:
        yield
    except VidcError:
        raise
    except Exception as error:
        if _is_of_disk(error, root, draft):
            need = "" if needed is None else f", its last result took {byte_size(needed)}"
            raise _disk_error(
                root,
                f"stage {stage} could not write its output, {byte_size(_tree_size(draft))} in"
                f"{need}: {error}",
                remedy,
            ) from error
        raise BuildError(
            "VIDC-BUILD-STAGE",
            f"stage {stage} failed: {type(error).__name__}: {error}",
            "run it again with -v for the traceback; finished stages are kept",
        ) from error


def _is_of_disk(error: BaseException, root: Path, draft: Path) -> bool:
    full = [os.strerror(number) for number in FULL]
    link: BaseException | None = error
    while link is not None:
        if any(text in str(link) for text in full):
            return True
        if isinstance(link, OSError):
            if link.errno in FULL:
                return True
            inside = isinstance(link.filename, str) and Path(link.filename).is_relative_to(draft)
            if link.errno in UNUSABLE and inside:
                return True
        link = link.__cause__ or link.__context__
    return _free(root) < FULL_BELOW


def _disk_error(root: Path, message: str, remedy: str) -> BuildError:
    return BuildError(
        "VIDC-BUILD-DISK",
        f"{message}; {byte_size(_free(root))} free",
        f"{remedy}, then build again: finished stages are kept",
    )


def _free(root: Path) -> int:
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _tree_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
