"""Integrity checks of a bundle's files against its manifest."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vidc.plugins.errors import GateError
from vidc.runtime.document import FileEntry, refuse_links, unreadable
from vidc.runtime.manifest import CHUNK_BYTES, MANIFEST_NAME, BundleFile, Manifest

VerifyMode = Literal["full", "fast", "off"]
Progress = Callable[[int, int], None]
"""Called with the bytes compared so far and the total."""

FAST_LIMIT = 2**20
"""Mode ``fast`` hashes files below this size in bytes."""

_READ = 2**22
_AGAIN = "copy the bundle again from where it was built, or build it again"


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


def file_entries(bundle: Path) -> dict[str, BundleFile]:
    """Returns the entries of ``Manifest.files`` for a folder.

    Raises:
        GateError: ``VIDC-BUNDLE-PATH``, a symbolic link or special file.
    """
    return {path: file_entry(bundle / path) for path in sorted(_walk(bundle))}


def verify(
    bundle: Path, manifest: Manifest, mode: VerifyMode, progress: Progress | None = None
) -> None:
    """Compares the files in a folder with the manifest.

    Args:
        bundle: the bundle's folder.
        manifest: its manifest.
        mode: ``full`` checks the set of files, their sizes and their digests (of a large file, its
            chunks'); ``fast`` hashes only files below ``FAST_LIMIT``; ``off`` checks nothing.
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
    """Compares a folder with the files that its document ``document`` lists; as ``verify``."""
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


@dataclass(frozen=True)
class _Part:
    """A byte range of a file and its expected digest."""

    file: Path
    start: int
    size: int
    sha256: str

    def compare(self) -> None:
        """Hashes the range; raises as ``verify``."""
        digest, left = hashlib.sha256(), self.size
        try:
            with self.file.open("rb") as stream:
                stream.seek(self.start)
                while left and (data := stream.read(min(_READ, left))):
                    digest.update(data)
                    left -= len(data)
        except OSError as error:
            raise unreadable(self.file, error) from error
        if digest.hexdigest() != self.sha256:
            part = f" from byte {self.start} on" if self.start else ""
            raise GateError(
                "VIDC-BUNDLE-ALTERED",
                f"{self.file} has SHA-256 {digest.hexdigest()}{part}, expected {self.sha256}",
                _AGAIN,
            )


def _parts(file: Path, entry: FileEntry) -> Iterator[_Part]:
    chunks = entry.chunks if isinstance(entry, BundleFile) else ()
    if not chunks:
        yield _Part(file, 0, entry.size, entry.sha256)
    for index, digest in enumerate(chunks):
        start = index * CHUNK_BYTES
        yield _Part(file, start, min(CHUNK_BYTES, entry.size - start), digest)


def _compare_digests(bundle: Path, files: dict[str, FileEntry], progress: Progress | None) -> None:
    """Hashes in threads on all cores; hashlib releases the GIL."""
    parts = [part for path, entry in files.items() for part in _parts(bundle / path, entry)]
    total, done = sum(part.size for part in parts), 0
    pool = ThreadPoolExecutor()
    try:
        for part, _ in zip(parts, pool.map(_Part.compare, parts), strict=True):
            done += part.size
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(cancel_futures=True)
