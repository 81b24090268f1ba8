"""Results of stages on disk by key: built once, and locked while in use."""

import math
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vidc.compiler.store.atomic import (
    FileLock,
    Mode,
    drafts,
    read_json,
    sync,
    sync_tree,
    write_json,
)
from vidc.compiler.store.digest import DigestMemory, Json, sha256_file, sha256_json
from vidc.compiler.store.disk import OTHER_CACHE, stage_errors
from vidc.compiler.store.record import (
    OUTPUT,
    RECORD,
    DamagedError,
    Entry,
    File,
    Record,
    file_sizes,
    open_entry,
)
from vidc.plugins.errors import BuildError

PATIENCE_SECONDS = 1.0
"""Seconds of waiting for another build before a note."""

POLL_SECONDS = 0.05

ABANDONED_SECONDS = 86400.0
"""Age in seconds from which a draft counts as abandoned where no lock tells if its writer runs.

These are drafts of stages on another host, and drafts of single files."""


@dataclass(frozen=True)
class Last:
    """The last result of a stage in a slot, the name of a kind of build; see ``plan``.

    Attributes:
        components: components of the result's key.
        size: bytes of the output.
    """

    components: Mapping[str, Any]
    size: int


KEPT = ".kept"
"""Name of the folder in the store that a stage gets as ``Workspace.kept``."""


class Store:
    """A folder of results, ``<stage>/<key>/``, shared by any number of processes.

    An entry appears by atomic rename, complete and synced, and never changes. ``obtain`` holds a
    shared lock on its result until the store is closed; removal needs the exclusive lock. Use the
    store as a context manager around the build and the use of its results. Not thread-safe.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.digests = DigestMemory(root / ".digests")
        self._held: dict[str, FileLock] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the locks of all entries; other processes may then remove them."""
        while self._held:
            self._held.popitem()[1].close()

    def lookup(self, stage: str, key: str, *, sizes_only: bool = False) -> Entry | None:
        """Returns the entry of this key, None if missing or damaged.

        Args:
            stage: name of the stage.
            key: key of the result.
            sizes_only: True to compare only the sizes of the files, not their digests.
        """
        try:
            entry = open_entry(self._path(stage, key))
            return entry if sizes_only else entry.verify(self.digests.file)
        except DamagedError:
            return None

    def obtain(
        self,
        components: Mapping[str, Json],
        produce: Callable[[Path], None],
        note: Callable[[str], None],
        needed: int | None = None,
        *,
        fresh: bool = False,
    ) -> tuple[Entry, bool]:
        """Returns the entry of these components, and True if ``produce`` had to write it.

        One process builds; others with the same key wait and reuse its result.

        Args:
            components: components of the key; ``stage`` is the stage's name.
            produce: writes the output into an empty folder.
            note: receives waits and damaged entries.
            needed: expected bytes of the output, for the message about a full disk.
            fresh: True if another process of this build just wrote and hashed the result: then only
                file sizes are compared.

        Raises:
            BuildError: ``VIDC-BUILD-DISK`` or ``VIDC-BUILD-STAGE``; the partial output is removed.
        """
        stage, key = str(components["stage"]), sha256_json(components)
        lock = self._held.pop(key, None) or self.lock(key)
        built = False
        announce_at = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                if lock.try_acquire(Mode.SHARED):
                    entry = self.lookup(stage, key, sizes_only=fresh or built)
                    if entry is not None:
                        (entry.path / RECORD).touch()
                        self._held[key] = lock
                        return entry, built
                    if built:
                        raise BuildError(
                            "VIDC-BUILD-STAGE",
                            f"stage {stage}: its output was changed right after it was finished",
                            "see that nothing else writes to the cache, then build again",
                        )
                if not built and lock.try_acquire(Mode.EXCLUSIVE):
                    if self.lookup(stage, key) is None:
                        self._build(components, produce, note, needed)
                        built = True
                    continue
                if time.monotonic() > announce_at:
                    note(f"{stage}: waiting for another build of the same thing")
                    announce_at = math.inf
                # Polls, since a blocked writer would not see a finished result.
                time.sleep(POLL_SECONDS)
        finally:
            if self._held.get(key) is not lock:
                lock.close()

    def last(self, slot: str, stage: str) -> Last | None:
        """Returns the last result of a stage in a slot, None if never built there."""
        value = read_json(self._slot(slot, stage))
        return None if value is None else Last(value["components"], value["size"])

    def remember(self, slot: str, components: Mapping[str, Json], size: int) -> None:
        """Records a result, ``size`` bytes, as the last of its stage in a slot."""
        stage = str(components["stage"])
        if self.last(slot, stage) != Last(components, size):
            write_json(self._slot(slot, stage), {"components": components, "size": size})

    def paths(self) -> Iterator[Path]:
        """Yields the folders of all entries, including damaged ones."""
        return (path for path in self.root.glob("[!.]*/*") if path.is_dir())

    def lock(self, key: str) -> FileLock:
        """Returns the unacquired lock of a key: shared to use the entry, exclusive to change it."""
        return FileLock(self.root / ".locks" / key)

    def remove(self, path: Path) -> None:
        """Removes the entry at ``path`` atomically; the caller holds its lock exclusively."""
        grave = self._draft(path.name)
        grave.parent.mkdir(exist_ok=True)
        path.rename(grave)
        shutil.rmtree(grave)

    def sweep(self) -> None:
        """Removes partial output of dead processes."""
        for draft in (self.root / ".drafts").glob("*-*-*"):
            key, _, host = draft.name.split("-", 2)
            lock = self.lock(key)
            if lock.try_acquire(Mode.EXCLUSIVE) and (
                host == socket.gethostname()
                or time.time() - draft.stat().st_mtime > ABANDONED_SECONDS
            ):
                shutil.rmtree(draft, ignore_errors=True)
            lock.close()
        kept = self.root / KEPT
        folders = (self.root / ".slots", self.root / ".digests", kept, *kept.glob("*/"))
        for folder in folders:
            for file in drafts(folder):
                with suppress(FileNotFoundError):  # It is in its place, or another build swept it.
                    if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                        file.unlink()

    def _build(
        self,
        components: Mapping[str, Json],
        produce: Callable[[Path], None],
        note: Callable[[str], None],
        needed: int | None,
    ) -> None:
        """Runs ``produce`` and publishes the result; needs the exclusive lock of the key."""
        stage, key = str(components["stage"]), sha256_json(components)
        path, draft = self._path(stage, key), self._draft(key)
        if path.exists():
            note(f"{stage}: the cached result is damaged, building it again")
            self.remove(path)
        try:
            with stage_errors(stage, self.root, draft, needed, OTHER_CACHE):
                output = draft / OUTPUT
                output.mkdir(parents=True)
                started = time.perf_counter()
                produce(output)
                record = Record(
                    components=components,
                    files={
                        name: File(size, sha256_file(output / name))
                        for name, size in file_sizes(output).items()
                    },
                    created=time.time(),
                    seconds=time.perf_counter() - started,
                    vidc=version("vidc"),
                )
                write_json(draft / RECORD, record.to_json())
                sync_tree(draft)
                self._publish(draft, path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _publish(self, draft: Path, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        try:
            draft.rename(path)
        except OSError:
            # If the file system's locks do not reach other hosts, another may have been first.
            if not path.exists():
                raise
        sync(path.parent)

    def _path(self, stage: str, key: str) -> Path:
        return self.root / re.sub(r"[^a-z0-9_]+", "-", stage.lower()).strip("-") / key

    def _slot(self, slot: str, stage: str) -> Path:
        return self.root / ".slots" / f"{sha256_json([slot, stage])}.json"

    def _draft(self, key: str) -> Path:
        return self.root / ".drafts" / f"{key}-{uuid.uuid4().hex}-{socket.gethostname()}"
