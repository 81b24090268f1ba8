"""Runs a build: what is in the store is used, the rest is built."""

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
    """Is told how a build gets on."""

    def started(self, stage: str) -> None:
        """A stage begins to run, or its result is taken from the store."""

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """A stage's result is there: from the store (``hit``), or built just now."""

    def note(self, text: str) -> None:
        """One line worth showing."""


@dataclass(frozen=True)
class Result:
    """The result of one stage.

    Attributes:
        path: folder of its output, to be read only, safe until the store is closed.
        components: what its key is made of.
        files: what is in it, by relative path.
        key: under which the store has it.
        hit: it was there, or another build made it meanwhile.
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
    """The results of all stages, by name.

    Finished stages stay in the store whatever happens later: an interrupted build resumes at the
    first unfinished one.

    Args:
        stages: in topological order.
        store: where results are looked up and kept.
        slot: names this build among others, for the explanations of a later ``plan``.
        progress: is told of each stage.
        workers: processes that build stages side by side; with 1 they are built in this one.
            Each stage must then be picklable.
        device_bytes: of the target's memory that stages side by side may take together, as
            ``fitting`` says. None sets no limit.

    Raises:
        BuildError: ``VIDC-BUILD-STAGE`` names the stage that failed, ``VIDC-BUILD-DISK`` a disk
            that is full or refuses to be written, ``VIDC-BUILD-INPUT`` an unreadable file.
        ValueError: the stages are not in order.
    """
    check_order(stages)
    for stage in stages:  # A missing file or tool is told before the first stage runs.
        stage.key().tools()
    with store_errors(store.root), _Workers() as pool:
        store.sweep()
        build = _Build(store, slot, progress)
        waiting, queue, running = list(stages), list[_Started](), dict[Future[bool], _Started]()
        while waiting or queue or running:
            # One that is in the store may make others ready.
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
    """Which stages of a queue start now: their indices, in the order in which they start.

    One that needs nothing always starts. Of the others the largest comes first, since it tends to
    take the longest, and of equal ones the earliest; while it does not fit none overtakes it, so
    that smaller ones cannot keep it waiting by turns. One that needs more than there is runs when
    no other that needs any does.

    Args:
        queue: bytes that each waiting stage needs, the earliest first.
        running: bytes that each running stage takes.
        capacity: bytes that stages may take together; None sets no limit.
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
    """A stage whose turn has come; goes to a worker as it is."""

    stage: Stage
    components: Mapping[str, Json]
    inputs: Mapping[str, Path]
    needed: int | None
    at: float

    def produce(self, output: Path, note: Callable[[str], None], kept: Path) -> None:
        """Runs the stage."""
        self.stage.run(Workspace(output, self.inputs, note, kept))


class _Build:
    """The results of a build so far."""

    def __init__(self, store: Store, slot: str, progress: Progress) -> None:
        self.results: dict[str, Result] = {}
        self._outputs: dict[str, Mapping[str, str]] = {}
        self._store = store
        self._slot = slot
        self._progress = progress

    def is_ready(self, stage: Stage) -> bool:
        """Returns True if everything the stage consumes is there."""
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
        """Takes a stage's result from the store, where it is built now if it is not there."""
        name = started.stage.name
        entry, built = _obtain(self._store, started, self._progress.note)
        hit = not (built or built_elsewhere)
        self._store.remember(self._slot, started.components, entry.size)
        self._outputs[name] = entry.digests
        # Waiting for a worker is no work.
        seconds = time.perf_counter() - started.at if hit else entry.record.seconds
        self.results[name] = Result(
            entry.output, started.components, entry.record.files, entry.key, hit, seconds
        )
        self._progress.finished(name, hit, seconds)


class _Workers:
    """Processes, each started when a stage is handed over and none of them is idle.

    Each has a pool of its own: one whose process dies, or is killed for memory, ends all of its
    processes, and does not say which stage it was.
    """

    def __init__(self) -> None:
        self._pools: list[ProcessPoolExecutor] = []
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[bool], ProcessPoolExecutor] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            # A terminal interrupts them too; `kill` does not.
            for process in active_children():
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., bool], *arguments: Any) -> Future[bool]:
        """Runs a module's function in a process that is used again after ``outcome``."""
        pool = self._idle.pop() if self._idle else self._start()
        future = pool.submit(function, *arguments)
        self._busy[future] = pool
        return future

    def submit_alone(self, function: Callable[..., bool], *arguments: Any) -> Future[bool]:
        """Runs it in a process that ends with it, which frees what it has of a device.

        CUDA's context, and the memory that PyTorch keeps for later, would stay with an idle one.
        """
        pool = self._start()
        future = pool.submit(function, *arguments)
        future.add_done_callback(lambda _: pool.shutdown(wait=False))
        return future

    def outcome(self, future: Future[bool], stage: str) -> bool:
        """Returns the result of a function that has ended.

        Raises:
            BuildError: ``VIDC-BUILD-STAGE``, its process ended before it.
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
        # A forked process would inherit locks that torch's threads hold.
        pool = ProcessPoolExecutor(
            1, get_context("spawn"), initializer=_end_quietly_when_interrupted
        )
        self._pools.append(pool)
        return pool


def _end_quietly_when_interrupted() -> None:
    def end(*_: object) -> None:
        # Once: a second one would break into the removal of what is half-written.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(130)

    signal.signal(signal.SIGINT, end)


def _produce(root: Path, started: _Started) -> bool:
    """Builds a stage in a worker, as another build of the same thing would; whether it had to."""
    with Store(root) as store:
        return _obtain(store, started, lambda text: print(text, file=sys.stderr))[1]  # noqa: T201


def _obtain(store: Store, started: _Started, note: Callable[[str], None]) -> tuple[Entry, bool]:
    return store.obtain(
        started.components,
        lambda output: started.produce(output, note, store.root / KEPT),
        note,
        started.needed,
    )
