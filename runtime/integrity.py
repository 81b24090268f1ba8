"""Integrity checks of a bundle's files against its manifest."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Literal, get_args

from vidc.plugins.errors import GateError, UsageError, nearest
from vidc.runtime.document import AGAIN, FileEntry, refuse_links, unreadable
from vidc.runtime.files import Files
from vidc.runtime.manifest import CHUNK_BYTES, MANIFEST_NAME, BundleFile, Manifest

VerifyMode = Literal["full", "fast", "off"]
FAST_LIMIT = 2**20
"""Mode ``fast`` hashes files below this size in bytes."""

_READ = 2**22


def file_entry(file: Path) -> BundleFile:
    """Returns the size and digests of a file, read once."""
    whole, chunks, size = hashlib.sha256(), [], 0
    with file.open("rb") as stream:
        while data := stream.read(_READ):
            if size % CHUNK_BYTES == 0:
                chunks.append(hashlib.sha256())
            chunks[-1].update(data)
            whole.update(data)
            size += len(data)
    found = tuple(chunk.hexdigest() for chunk in chunks) if size > CHUNK_BYTES else ()
    return BundleFile(size, whole.hexdigest(), found)


def verify(bundle: Path, manifest: Manifest, mode: VerifyMode) -> None:
    """Compares the files in a folder with the manifest.

    Args:
        bundle: the bundle's folder.
        manifest: its manifest.
        mode: ``full`` checks the set of files, their sizes and their digests (of a large file, its
            chunks'); ``fast`` hashes only files below ``FAST_LIMIT``; ``off`` checks nothing.

    Raises:
        GateError: ``VIDC-BUNDLE-MISSING``, ``-EXTRA``, ``-TRUNCATED``, ``-ALTERED``, ``-PATH`` or
            ``-UNREADABLE``.
    """
    verify_files(bundle, MANIFEST_NAME, manifest.files, mode)


def verify_files(
    folder: Path, document: str, files: Mapping[str, FileEntry], mode: VerifyMode
) -> None:
    """Compares a folder with the files that its document ``document`` lists; as ``verify``."""
    require_mode(mode)
    if mode == "off":
        return
    compare_names(folder, document, files)
    with Files(folder, files) as opened:
        compare_files(opened, files, mode)


def require_mode(mode: str) -> None:
    """Refuses an unknown mode of ``verify``.

    Raises:
        UsageError: ``VIDC-BUNDLE-VERIFY``.
    """
    if mode not in get_args(VerifyMode):
        raise UsageError(
            "VIDC-BUNDLE-VERIFY",
            f"verify mode {str(mode)[:64]!r} is unknown",
            nearest(str(mode), get_args(VerifyMode)),
        )


def compare_files(
    opened: Files,
    files: Mapping[str, FileEntry],
    mode: VerifyMode,
    stop: Event | None = None,
) -> None:
    """Compares files with their entries; as ``verify``. ``stop`` is that of ``Files.compare``."""
    for path in files:
        opened.name(path)
    opened.compare(
        [path for path, entry in files.items() if mode == "full" or entry.size < FAST_LIMIT],
        stop,
    )


def _walk(bundle: Path) -> Iterator[str]:
    """Yields the paths of a folder's files; refuses links and special files."""

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
                    "VIDC-BUNDLE-PATH", f"{bundle / path} is neither a file nor a folder", AGAIN
                )


def compare_names(folder: Path, document: str, files: Mapping[str, FileEntry]) -> None:
    """Refuses a folder that lacks a file, or has one that ``document`` does not list."""
    present = set(_walk(folder)) - {document}
    if missing := sorted(files.keys() - present):
        raise GateError("VIDC-BUNDLE-MISSING", f"{folder} lacks {_listed(missing)}", AGAIN)
    if extra := sorted(present - files.keys()):
        raise GateError(
            "VIDC-BUNDLE-EXTRA",
            f"{folder} holds {_listed(extra)}, which its {document} does not list",
            "move what does not belong there elsewhere",
        )


def _listed(paths: list[str]) -> str:
    shown = ", ".join(repr(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
