"""Runs a build: uses results in the store and builds the missing ones."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vidc.compiler.store.digest import Json, sha256_json
from vidc.compiler.store.disk import store_errors
from vidc.compiler.store.record import Entry, File
from vidc.compiler.store.stage import Stage, Workspace, check_order, key_components
from vidc.compiler.store.store import KEPT, Store
from vidc.compiler.store.workers import Worker, Workers, finished


class Progress(Protocol):
    """Receives the progress of a build."""

    def started(self, stage: str) -> None:
        """Called when a stage starts to run, or its result is taken from the store."""

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """Called when a stage's result is ready, from the store (``hit``) or newly built."""

    def note(self, text: str) -> None:
        """Shows one line."""


@dataclass(frozen=True)
class Result:
    """The result of one stage.

    Attributes:
        path: folder of its output; read-only, and locked until the store is closed.
        components: components of the key.
        files: files of the output, by relative path.
        key: key in the store.
        hit: True if the store had the result, or another build made it meanwhile.
        seconds: run time of the stage; for a hit, the time to check the result or wait for it.
    """

    path: Path
    components: Mapping[str, Json]
    files: Mapping[str, File]
    key: str
    hit: bool
    seconds: float

    @property
    def digests(self) -> dict[str, str]:
        """Digest of each file by relative path."""
        return {name: file.sha256 for name, file in self.files.items()}


def run(
    stages: Sequence[Stage],
    store: Store,
    slot: str,
    progress: Progress,
    pool: Workers | None = None,
    device_bytes: int | None = None,
) -> dict[str, Result]:
    """Runs a build and returns the results of all stages by name.

    Finished stages stay in the store: an interrupted build resumes at the first unfinished one.

    Args:
        stages: in topological order.
        store: store of the results.
        slot: name of this kind of build, for the reasons of a later ``plan``.
        progress: receives each stage.
        pool: worker processes from ``working``, for picklable stages; None builds in this process.
        device_bytes: limit of the target's memory for parallel stages, see ``fitting``; None sets
            no limit.

    Raises:
        BuildError: ``VIDC-BUILD-STAGE`` names the stage that failed, ``VIDC-BUILD-DISK`` a disk
            that is full or refuses to be written, ``VIDC-BUILD-INPUT`` an unreadable file.
        ValueError: the stages are not in order.
    """
    if pool is None:
        with working(store, 0) as none:
            return run(stages, store, slot, progress, none)
    check_order(stages)
    for stage in stages:  # Reports a missing file or tool before the first stage runs.
        stage.key().tools()
    with store_errors(store.root):
        build = _Build(store, slot, progress)
        waiting, queue, running = list(stages), list[_Started](), dict[Worker, _Started]()
        while waiting or queue or running:
            # A result in the store may make other stages ready.
            while ready := [stage for stage in waiting if build.is_ready(stage)]:
                for stage in ready:
                    waiting.remove(stage)
                    started = build.start(stage)
                    if pool.most == 0 or store.lookup(stage.name, sha256_json(started.components)):
                        progress.started(stage.name)
                        build.finish(started)
                    else:
                        queue.append(started)
            taken = [started.stage.device_bytes for started in running.values()]
            needs = [started.stage.device_bytes for started in queue]
            free = pool.most - len(running)
            for started in [queue[index] for index in fitting(needs, taken, device_bytes)[:free]]:
                queue.remove(started)
                progress.started(started.stage.name)
                running[pool.submit(_produce, store.root, started)] = started
            for worker in finished(running):
                ended = running.pop(worker)
                built = worker.result(ended.stage.name)
                pool.keep(worker, idle=not ended.stage.device_bytes)
                build.finish(ended, built_elsewhere=built)
        return {stage.name: build.results[stage.name] for stage in stages}


@contextmanager
def working(store: Store, workers: int) -> Iterator[Workers]:
    """Yields a pool of at most ``workers`` processes, and ends them.

    Before and after, removes partial output that killed workers left in the store.
    """
    with store_errors(store.root):
        store.sweep()
    try:
        with Workers(workers) as pool:
            yield pool
    finally:
        with store_errors(store.root):
            store.sweep()


def fitting(queue: Sequence[int], running: Iterable[int], capacity: int | None) -> list[int]:
    """Returns the indices of the queued stages that start now, in starting order.

    A stage that needs no memory always starts. The others start largest first, since the largest
    tends to take longest; of equal stages the earliest starts first. While the largest does not
    fit, no smaller stage overtakes it, which prevents starvation. A stage that needs more than the
    capacity runs when no other stage uses memory.

    Args:
        queue: bytes of each waiting stage, earliest first.
        running: bytes of each running stage.
        capacity: total bytes; None sets no limit.
    """
    taken, limit = sum(running), math.inf if capacity is None else capacity
    starting, fits = [], True
    for index in sorted(range(len(queue)), key=queue.__getitem__, reverse=True):
        need = queue[index]
        fits = fits and (taken == 0 or taken + need <= limit)
        if fits or need == 0:
            starting.append(index)
            taken += need
    return starting


@dataclass(frozen=True)
class _Started:
    """A started stage; picklable for a worker."""

    stage: Stage
    components: Mapping[str, Json]
    inputs: Mapping[str, Path]
    needed: int | None
    at: float

    def produce(self, output: Path, note: Callable[[str], None], kept: Path) -> None:
        """Runs the stage."""
        self.stage.run(Workspace(output, self.inputs, note, kept))


class _Build:
    """State of a running build."""

    def __init__(self, store: Store, slot: str, progress: Progress) -> None:
        self.results: dict[str, Result] = {}
        self._outputs: dict[str, Mapping[str, str]] = {}
        self._store = store
        self._slot = slot
        self._progress = progress

    def is_ready(self, stage: Stage) -> bool:
        """Returns True if all inputs of the stage are built."""
        return all(consumed.stage in self.results for consumed in stage.inputs)

    def start(self, stage: Stage) -> _Started:
        """Computes a stage's key."""
        last = self._store.last(self._slot, stage.name)
        return _Started(
            stage=stage,
            components=key_components(stage, self._outputs, self._store.digests),
            inputs={i.stage: self.results[i.stage].path for i in stage.inputs},
            needed=None if last is None else last.size,
            at=time.perf_counter(),
        )

    def finish(self, started: _Started, built_elsewhere: bool = False) -> None:
        """Takes a stage's result from the store; builds it if missing."""
        name = started.stage.name
        note = self._progress.note
        entry, built = _obtain(self._store, started, note, fresh=built_elsewhere)
        hit = not (built or built_elsewhere)
        self._store.remember(self._slot, started.components, entry.size)
        self._outputs[name] = entry.digests
        # Time spent waiting for a worker does not count.
        seconds = time.perf_counter() - started.at if hit else entry.record.seconds
        self.results[name] = Result(
            entry.output, started.components, entry.record.files, entry.key, hit, seconds
        )
        self._progress.finished(name, hit, seconds)
        for line in started.stage.notes(entry.output):
            note(line)


def _produce(root: Path, started: _Started) -> bool:
    """Builds a stage in a worker; returns True if the store did not have it."""
    with Store(root) as store:
        return _obtain(store, started, lambda text: print(text, file=sys.stderr))[1]  # noqa: T201


def _obtain(
    store: Store, started: _Started, note: Callable[[str], None], *, fresh: bool = False
) -> tuple[Entry, bool]:
    return store.obtain(
        started.components,
        lambda output: started.produce(output, note, store.root / KEPT),
        note,
        started.needed,
        fresh=fresh,
    )
