"""Runs a build: uses results in the store and builds the missing ones."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Protocol, Self

from vidc.compiler.store.digest import Json, sha256_json
from vidc.compiler.store.disk import store_errors
from vidc.compiler.store.record import Entry, File
from vidc.compiler.store.stage import Stage, Workspace, check_order, key_components
from vidc.compiler.store.store import KEPT, Store
from vidc.plugins.errors import BuildError


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
        components: of its key.
        files: of its output, by relative path.
        key: in the store.
        hit: True if the store had it or another build made it.
        seconds: that this build spent on it.
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
    workers: int = 1,
    device_bytes: int | None = None,
) -> dict[str, Result]:
    """Runs a build and returns the results of all stages by name.

    Finished stages stay in the store: an interrupted build resumes at the first unfinished one.

    Args:
        stages: in topological order.
        store: of the results.
        slot: name of this kind of build, for the reasons of a later ``plan``.
        progress: receives each stage.
        workers: parallel processes; 1 builds in this process. With more, stages must be picklable.
        device_bytes: limit of the target's memory for parallel stages, see ``fitting``; None sets
            no limit.

    Raises:
        BuildError: ``VIDC-BUILD-STAGE`` names the stage that failed, ``VIDC-BUILD-DISK`` a disk
            that is full or refuses to be written, ``VIDC-BUILD-INPUT`` an unreadable file.
        ValueError: the stages are not in order.
    """
    check_order(stages)
    for stage in stages:  # Reports a missing file or tool before the first stage runs.
        stage.key().tools()
    with store_errors(store.root), _Workers() as pool:
        store.sweep()
        build = _Build(store, slot, progress)
        waiting, queue, running = list(stages), list[_Started](), dict[Future[bool], _Started]()
        while waiting or queue or running:
            # A result in the store may make other stages ready.
            while ready := [stage for stage in waiting if build.is_ready(stage)]:
                for stage in ready:
                    waiting.remove(stage)
                    started = build.start(stage)
                    if workers == 1 or store.lookup(stage.name, sha256_json(started.components)):
                        progress.started(stage.name)
                        build.finish(started)
                    else:
                        queue.append(started)
            taken = [started.stage.device_bytes for started in running.values()]
            needs = [started.stage.device_bytes for started in queue]
            free = workers - len(running)
            for started in [queue[index] for index in fitting(needs, taken, device_bytes)[:free]]:
                queue.remove(started)
                progress.started(started.stage.name)
                submit = pool.submit_alone if started.stage.device_bytes else pool.submit
                running[submit(_produce, store.root, started)] = started
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ended = running.pop(future)
                build.finish(ended, built_elsewhere=pool.outcome(future, ended.stage.name))
        return {stage.name: build.results[stage.name] for stage in stages}


def fitting(queue: Sequence[int], running: Iterable[int], capacity: int | None) -> list[int]:
    """Returns the indices of the queued stages that start now, in starting order.

    A stage that needs no memory always starts. Of the rest the largest comes first, since it tends
    to take longest, and of equal ones the earliest. While it does not fit, no smaller stage
    overtakes it, which prevents starvation. A stage that needs more than the capacity runs when no
    other stage uses memory.

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
        entry, built = _obtain(self._store, started, self._progress.note)
        hit = not (built or built_elsewhere)
        self._store.remember(self._slot, started.components, entry.size)
        self._outputs[name] = entry.digests
        # Time spent waiting for a worker does not count.
        seconds = time.perf_counter() - started.at if hit else entry.record.seconds
        self.results[name] = Result(
            entry.output, started.components, entry.record.files, entry.key, hit, seconds
        )
        self._progress.finished(name, hit, seconds)


class _Workers:
    """Worker processes, each started when a stage is submitted and none is idle.

    Each has its own pool: a pool with a dead process ends all of its processes and does not tell
    the stage.
    """

    def __init__(self) -> None:
        self._pools: list[ProcessPoolExecutor] = []
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[bool], ProcessPoolExecutor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            # A terminal's interrupt reaches the workers; `kill` does not.
            for process in active_children():
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., bool], *arguments: Any) -> Future[bool]:
        """Runs a module's function in a process that is reused after ``outcome``."""
        pool = self._idle.pop() if self._idle else self._start()
        future = pool.submit(function, *arguments)
        self._busy[future] = pool
        return future

    def submit_alone(self, function: Callable[..., bool], *arguments: Any) -> Future[bool]:
        """Runs a function in a process that ends with it, which frees its device memory.

        An idle process would keep its CUDA context and PyTorch's cached memory.
        """
        pool = self._start()
        future = pool.submit(function, *arguments)
        future.add_done_callback(lambda _: pool.shutdown(wait=False))
        return future

    def outcome(self, future: Future[bool], stage: str) -> bool:
        """Returns the result of a finished function.

        Raises:
            BuildError: ``VIDC-BUILD-STAGE``, its process died.
        """
        pool = self._busy.pop(future, None)
        try:
            result = future.result()
        except BrokenProcessPool as error:
            raise BuildError(
                "VIDC-BUILD-STAGE",
                f"stage {stage} ended its process: it crashed, or the system killed it for memory",
                "dmesg says which; run it again: finished stages are kept",
            ) from error
        if pool is not None:
            self._idle.append(pool)
        return result

    def _start(self) -> ProcessPoolExecutor:
        # A forked process would inherit held locks of torch's threads.
        pool = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_end_quietly_when_interrupted
        )
        self._pools.append(pool)
        return pool


def _end_quietly_when_interrupted() -> None:
    def end(*_: object) -> None:
        # Only once: a second interrupt would break the removal of partial output.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(130)

    signal.signal(signal.SIGINT, end)


def _produce(root: Path, started: _Started) -> bool:
    """Builds a stage in a worker; returns True if the store did not have it."""
    with Store(root) as store:
        return _obtain(store, started, lambda text: print(text, file=sys.stderr))[1]  # noqa: T201


def _obtain(store: Store, started: _Started, note: Callable[[str], None]) -> tuple[Entry, bool]:
    return store.obtain(
        started.components,
        lambda output: started.produce(output, note, store.root / KEPT),
        note,
        started.needed,
    )
