"""Whether the files of a bundle are those that were built."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

from vidc.plugins.errors import GateError
from vidc.runtime.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    refuse_links,
    unreadable,
)

VerifyMode = Literal["full", "fast", "off"]
Progress = Callable[[int, int], None]
"""Takes the bytes read so far and the bytes to read in all."""

FAST_LIMIT = 2**20
"""Size in bytes below which a file's digest is checked even by ``fast``."""

_CHUNK = 2**22
_AGAIN = "copy the bundle again from where it was built, or build it again"


def file_entry(file: Path, progress: Callable[[int], None] | None = None) -> FileEntry:
    """Size and digest of a file, read in chunks; ``progress`` takes the size of each."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            if progress is not None:
                progress(len(chunk))
    return FileEntry(size, digest.hexdigest())


def file_entries(bundle: Path) -> dict[str, FileEntry]:
    """The entries of ``Manifest.files`` for what lies in a folder.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``, a symbolic link or another thing that is no plain file.
    """
    return {path: file_entry(bundle / path) for path in sorted(_walk(bundle))}


def verify(
    bundle: Path, manifest: Manifest, mode: VerifyMode, progress: Progress | None = None
) -> None:
    """Compares the files in a folder with the manifest.

    Args:
        bundle: the bundle's folder.
        manifest: its manifest.
        mode: ``full`` checks that every file is there and no other, its size and its digest;
            ``fast`` checks digests only of files below ``FAST_LIMIT``; ``off`` checks nothing.
        progress: called while digests are computed.

    Raises:
        GateError: ``VIDC-BUNDLE-MISSING``, ``-EXTRA``, ``-TRUNCATED``, ``-ALTERED``, ``-PATH`` or
            ``-UNREADABLE``.
    """
    verify_files(bundle, MANIFEST_NAME, manifest.files, mode, progress)


def verify_files(
    folder: Path,
    document: str,
    files: Mapping[str, FileEntry],
    mode: VerifyMode,
    progress: Progress | None = None,
) -> None:
    """Compares a folder with the files that a document in it, by this name, lists; as ``verify``"""
    if mode not in get_args(VerifyMode):
        raise ValueError(f"verify mode {mode!r} is none of {', '.join(get_args(VerifyMode))}")
    if mode == "off":
        return
    _compare_names(folder, document, files)
    for path, entry in files.items():
        _compare_size(folder / path, entry)
    chosen = {
        path: entry for path, entry in files.items() if mode == "full" or entry.size < FAST_LIMIT
    }
    _compare_digests(folder, chosen, progress)


def _walk(bundle: Path) -> Iterator[str]:
    """Paths of a folder's files; links and special files are refused where they are met."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

    for folder, folders, names in os.walk(bundle, onerror=refuse):
        for name in (*folders, *names):
            path = (Path(folder) / name).relative_to(bundle).as_posix()
            refuse_links(bundle, path)
            mode = (bundle / path).stat().st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise GateError(
                    "VIDC-BUNDLE-PATH", f"{bundle / path} is neither a file nor a folder", _AGAIN
                )


def _compare_names(folder: Path, document: str, files: Mapping[str, FileEntry]) -> None:
    present = set(_walk(folder)) - {document}
    if missing := sorted(files.keys() - present):
        raise GateError("VIDC-BUNDLE-MISSING", f"{folder} lacks {_listed(missing)}", _AGAIN)
    if extra := sorted(present - files.keys()):
        raise GateError(
            "VIDC-BUNDLE-EXTRA",
            f"{folder} holds {_listed(extra)}, which its {document} does not list",
            "move what does not belong there elsewhere",
        )


def _listed(paths: list[str]) -> str:
    shown = ", ".join(repr(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"


def _compare_size(file: Path, entry: FileEntry) -> None:
    size = file.stat().st_size
    if size < entry.size:
        raise GateError("VIDC-BUNDLE-TRUNCATED", f"{file} has {size} of {entry.size} bytes", _AGAIN)
    if size > entry.size:
        raise GateError(
            "VIDC-BUNDLE-ALTERED", f"{file} has {size} bytes, expected {entry.size}", _AGAIN
        )


def _compare_digests(bundle: Path, files: dict[str, FileEntry], progress: Progress | None) -> None:
    total, done = sum(entry.size for entry in files.values()), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    for path, entry in files.items():
        try:
            found = file_entry(bundle / path, advance)
        except OSError as error:
            raise unreadable(bundle / path, error) from error
        if found != entry:
            raise GateError(
                "VIDC-BUNDLE-ALTERED",
                f"{bundle / path} has SHA-256 {found.sha256}, expected {entry.sha256}",
                _AGAIN,
            )
