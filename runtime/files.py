"""Files of a bundle, each opened once, so that the runtime uses the bytes that it hashed."""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from threading import Event
from typing import NoReturn, Self

from vidc.plugins.errors import GateError
from vidc.runtime.document import AGAIN, FileEntry, is_link, unreadable
from vidc.runtime.manifest import CHUNK_BYTES, BundleFile

_READ = 2**22
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Files:
    """The files of a folder by their paths in it.

    A file is opened once, without following links, and stays open. It is hashed, read and mapped
    through that descriptor. ``refuse_changes`` detects files that were written or replaced since.

    Args:
        folder: of the files.
        entries: sizes and digests by path; None compares nothing.
    """

    def __init__(self, folder: Path, entries: Mapping[str, FileEntry] | None = None) -> None:
        self._path = folder
        self._entries = entries
        self._open: dict[str, int] = {}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._sealed: list[int] = []
        try:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self._open.values(), *self._sealed, self._folder):
            os.close(descriptor)

    @property
    def folder(self) -> str:
        """Path that leads to this folder even after another one has taken the folder's place."""
        return f"/proc/self/fd/{self._folder}"

    def name(self, path: str) -> str:
        """Returns a path by which a library opens the same file, valid while it is open here."""
        return f"/proc/self/fd/{self._descriptor(path)}"

    def read(self, path: str) -> bytes:
        """Returns the bytes of a file, compared with its entry.

        Raises:
            GateError: ``VIDC-BUNDLE-MISSING``, ``-TRUNCATED``, ``-ALTERED``, ``-PATH`` or
                ``-UNREADABLE``.
        """
        entry, data = self._entry(path), self._read(path)
        if entry is not None:
            digest = hashlib.sha256(data).hexdigest()
            if (len(data), digest) != (entry.size, entry.sha256):
                self._refuse_digest(path, digest, entry.sha256)
        return data

    def sealed(self, path: str) -> str:
        """Returns the path of a copy in memory that nobody can change; raises as ``read``."""
        data = memoryview(self.read(path))
        try:
            descriptor = os.memfd_create("vidc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._sealed.append(descriptor)
            while data:
                data = data[os.write(descriptor, data) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise unreadable(self._path / path, error) from error
        return f"/proc/self/fd/{descriptor}"

    def compare(self, paths: Iterable[str], stop: Event | None = None) -> None:
        """Hashes files in parallel, a large one in chunks; raises as ``read``.

        Args:
            paths: the files.
            stop: once another thread sets it, the rest is left out.
        """
        parts = [part for path in paths for part in self._parts(path)]
        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        try:
            for _ in pool.map(self._compare_part, parts):
                if stop is not None and stop.is_set():
                    return
        finally:
            pool.shutdown(cancel_futures=True)

    def refuse_changes(self) -> None:
        """Refuses files that were written, replaced or removed since they were opened.

        Raises:
            GateError: ``VIDC-BUNDLE-CHANGED``.
        """
        for path, seen in self._seen.items():
            try:
                descriptor = self._opened(path)
            except GateError as error:
                if error.code == "VIDC-BUNDLE-UNREADABLE":  # Such as too many open files.
                    raise
                self._refuse_change(path)
            found = _state(os.fstat(descriptor))
            os.close(descriptor)
            if found != seen:
                self._refuse_change(path)

    def _entry(self, path: str) -> FileEntry | None:
        if self._entries is None:
            return None
        if path not in self._entries:
            raise GateError(
                "VIDC-BUNDLE-MISSING", f"{self._path} lists no file {path[:255]!r}", AGAIN
            )
        return self._entries[path]

    def _descriptor(self, path: str) -> int:
        """Returns the descriptor of a file of its recorded size."""
        if path in self._open:
            return self._open[path]
        entry = self._entry(path)
        descriptor = self._open[path] = self._opened(path)
        status = os.fstat(descriptor)
        self._seen[path] = _state(status)
        if entry is not None and status.st_size < entry.size:
            text = f"{self._path / path} has {status.st_size} of {entry.size} bytes"
            raise GateError("VIDC-BUNDLE-TRUNCATED", text, AGAIN)
        if entry is not None and status.st_size > entry.size:
            text = f"{self._path / path} has {status.st_size} bytes, expected {entry.size}"
            raise GateError("VIDC-BUNDLE-ALTERED", text, AGAIN)
        return descriptor

    def _opened(self, path: str) -> int:
        """Opens a regular file below the folder without following a link or waiting for a pipe."""
        *folders, name = PurePosixPath(path).parts
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        above = -1
        try:
            above = os.dup(self._folder)
            for folder in folders:
                inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=above)
                os.close(above)
                above = inner
            descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=above)
        except OSError as error:
            raise self._not_opened(path, error) from error
        finally:
            if above >= 0:
                os.close(above)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise GateError("VIDC-BUNDLE-PATH", f"{self._path / path} is not a regular file", AGAIN)

    def _not_opened(self, path: str, error: OSError) -> GateError:
        file = self._path / path
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return is_link(file)
        if error.errno == errno.ENOENT:
            return GateError("VIDC-BUNDLE-MISSING", f"{self._path} lacks {path!r}", AGAIN)
        if error.errno == errno.ENXIO:
            return GateError("VIDC-BUNDLE-PATH", f"{file} is not a regular file", AGAIN)
        return unreadable(file, error)

    def _read(self, path: str) -> bytes:
        descriptor = self._descriptor(path)
        pieces: list[bytes] = []
        try:
            while piece := os.pread(descriptor, _READ, sum(map(len, pieces))):
                pieces.append(piece)
        except OSError as error:
            raise unreadable(self._path / path, error) from error
        return b"".join(pieces)

    def _parts(self, path: str) -> Iterator[tuple[str, int, int, str]]:
        """Yields path, start, size and expected digest of the ranges that are hashed apart."""
        self._descriptor(path)
        entry = self._entry(path)
        assert entry is not None
        chunks = entry.chunks if isinstance(entry, BundleFile) else ()
        if not chunks:
            yield path, 0, entry.size, entry.sha256
        for index, digest in enumerate(chunks):
            start = index * CHUNK_BYTES
            yield path, start, min(CHUNK_BYTES, entry.size - start), digest

    def _compare_part(self, part: tuple[str, int, int, str]) -> None:
        path, start, left, expected = part
        digest, at = hashlib.sha256(), start
        try:
            while left and (data := os.pread(self._open[path], min(_READ, left), at)):
                digest.update(data)
                left, at = left - len(data), at + len(data)
        except OSError as error:
            raise unreadable(self._path / path, error) from error
        if digest.hexdigest() != expected:
            self._refuse_digest(path, digest.hexdigest(), expected, start)

    def _refuse_digest(self, path: str, found: str, expected: str, start: int = 0) -> NoReturn:
        part = f" from byte {start} on" if start else ""
        text = f"{self._path / path} has SHA-256 {found}{part}, expected {expected}"
        raise GateError("VIDC-BUNDLE-ALTERED", text, AGAIN)

    def _refuse_change(self, path: str) -> NoReturn:
        raise GateError(
            "VIDC-BUNDLE-CHANGED",
            f"{self._path / path} was changed while the bundle was loaded",
            "see that nothing writes to the bundle, then load it again",
        )


def _state(status: os.stat_result) -> tuple[int, ...]:
    """Returns the identity of a file, its size and its times, which change with its contents."""
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
    )  # fmt: skip
