"""Results of stages on disk, by key: looked up, built once, and held while they are in use."""

import math
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vidc.compiler.store.atomic import read_json, sync, sync_tree, write_json
from vidc.compiler.store.digest import DigestMemory, Json, sha256_file, sha256_json
from vidc.compiler.store.disk import OTHER_CACHE, stage_errors
from vidc.compiler.store.lock import FileLock, Mode
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
"""How long a wait for another build may last before it is announced."""

POLL_SECONDS = 0.05

ABANDONED_SECONDS = 86400.0
"""Age from which a draft of another host, whose locks may not reach here, counts as dead."""


@dataclass(frozen=True)
class Last:
    """The last result of a stage in a build slot: the components of its key, and its bytes."""

    components: Mapping[str, Any]
    size: int


KEPT = ".kept"
"""What stages keep between builds, by ``Workspace.kept``."""


class Store:
    """A folder of results, ``<stage>/<key>/``, shared by any number of processes.

    An entry appears in one rename, complete and synced, and never changes. ``obtain`` keeps a
    shared lock on what it returns until the store is closed, and removing takes the exclusive one:
    use the store as a context manager around the build and around the use of its results.
    One store serves one thread.
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
        """Lets go of every entry; another process may remove them from now on."""
        while self._held:
            self._held.popitem()[1].close()

    def lookup(self, stage: str, key: str) -> Entry | None:
        """The whole entry of this key, None where there is none or it is damaged."""
        try:
            return open_entry(self._path(stage, key))
        except DamagedError:
            return None

    def obtain(
        self,
        components: Mapping[str, Json],
        produce: Callable[[Path], None],
        note: Callable[[str], None],
        needed: int | None = None,
    ) -> tuple[Entry, bool]:
        """The entry of these components, and whether ``produce`` had to write it.

        One process builds while others that want the same key wait, and then reuse its result.

        Args:
            components: what the key is made of; ``stage`` names the stage.
            produce: writes the output into an empty folder.
            note: told of waits and of damaged entries.
            needed: bytes the output may take, for the message when the disk is full.

        Raises:
            BuildError: ``VIDC-BUILD-DISK`` or ``VIDC-BUILD-STAGE``; nothing is kept of the output.
        """
        stage, key = str(components["stage"]), sha256_json(components)
        lock = self._held.pop(key, None) or self.lock(key)
        built = False
        announce_at = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                if lock.try_acquire(Mode.SHARED):
                    entry = self.lookup(stage, key)
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
                # Polled, for a waiting writer would not see that the result is there to be read.
                time.sleep(POLL_SECONDS)
        finally:
            if self._held.get(key) is not lock:
                lock.close()

    def last(self, slot: str, stage: str) -> Last | None:
        """The last result of a stage in a slot, None if it was never built there."""
        value = read_json(self._slot(slot, stage))
        return None if value is None else Last(value["components"], value["size"])

    def remember(self, slot: str, components: Mapping[str, Json], size: int) -> None:
        """Makes a result of these components, ``size`` bytes, the last of its stage in a slot."""
        stage = str(components["stage"])
        if self.last(slot, stage) != Last(components, size):
            write_json(self._slot(slot, stage), {"components": components, "size": size})

    def paths(self) -> Iterator[Path]:
        """The folders of all entries, whole or damaged."""
        return (path for path in self.root.glob("[!.]*/*") if path.is_dir())

    def lock(self, key: str) -> FileLock:
        """The lock of a key, not yet acquired: shared to use the entry, exclusive to change it."""
        return FileLock(self.root / ".locks" / key)

    def remove(self, path: Path) -> None:
        """Removes the entry at ``path`` in one step; its lock must be held exclusively."""
        grave = self._draft(path.name)
        grave.parent.mkdir(exist_ok=True)
        path.rename(grave)
        shutil.rmtree(grave)

    def sweep(self) -> None:
        """Removes what dead processes left half-written."""
        for draft in (self.root / ".drafts").glob("*"):
            key, _, host = draft.name.split("-", 2)
            lock = self.lock(key)
            if lock.try_acquire(Mode.EXCLUSIVE) and (
                host == socket.gethostname()
                or time.time() - draft.stat().st_mtime > ABANDONED_SECONDS
            ):
                shutil.rmtree(draft, ignore_errors=True)
            lock.close()

    def _build(
        self,
        components: Mapping[str, Json],
        produce: Callable[[Path], None],
        note: Callable[[str], None],
        needed: int | None,
    ) -> None:
        """Runs ``produce`` and publishes the result; the key's lock must be held exclusively."""
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
            # Where the file system keeps locks to one host, another may have been first.
            if not path.exists():
                raise
        sync(path.parent)

    def _path(self, stage: str, key: str) -> Path:
        return self.root / re.sub(r"[^a-z0-9_]+", "-", stage.lower()).strip("-") / key

    def _slot(self, slot: str, stage: str) -> Path:
        return self.root / ".slots" / f"{sha256_json([slot, stage])}.json"

    def _draft(self, key: str) -> Path:
        return self.root / ".drafts" / f"{key}-{uuid.uuid4().hex}-{socket.gethostname()}"
