"""Worker processes that run stages side by side and never outlive the build."""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from vidc.plugins.environment import variable
from vidc.plugins.errors import BuildError

GRACE_SECONDS = 2.0
"""Time that an interrupted stage has to remove its partial output before it is killed."""

_PR_SET_PDEATHSIG = 1
_WARNINGS = "PYTHONWARNINGS"
_QUIET_TRACKER = "ignore:resource_tracker"
"""Warning filter: killed workers leak semaphores, which multiprocessing's tracker removes."""
_WAITING = "OMP_WAIT_POLICY"
"""OpenMP's variable for how threads wait. By default they spin: on a busy machine, or in parallel
processes, they then occupy the cores that the awaited threads need, and a calibration takes over
ten times as long."""
_GUARD = ("/bin/sh", "-c", 'read _; kill -s KILL -- "-$0"')
"""Kills the process group that its argument names once its stdin ends."""

# A forked process would inherit locks that torch's threads hold, and wait for them forever.
_SPAWN = get_context("spawn")


class Worker:
    """A process that runs one function at a time.

    The process leads a process group that dies with it, so that no compiler that it started
    survives. The process itself dies with the thread that started it.
    """

    def __init__(self) -> None:
        self.connection, end = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(end, os.getpid()))
        # The new process inherits the blocked SIGINT and unblocks it once it can end quietly.
        filters = ",".join(filter(None, (os.environ.get(_WARNINGS), _QUIET_TRACKER)))
        waiting = os.environ.get(_WAITING, "PASSIVE")
        with _blocked_interrupt(), variable(_WARNINGS, filters), variable(_WAITING, waiting):
            self._process.start()
        end.close()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts a module's function; ``connection`` is ready when it ends."""
        with suppress(BrokenPipeError):  # The process died; `result` raises the error.
            self.connection.send((function, arguments))

    def result(self, stage: str) -> Any:
        """Returns the function's result or raises its exception.

        Raises:
            BuildError: ``VIDC-BUILD-STAGE``, its process died.
        """
        try:
            result, error, told = self.connection.recv()
        except (EOFError, ConnectionResetError) as died:
            raise BuildError(
                "VIDC-BUILD-STAGE",
                f"stage {stage} ended its process: it crashed, or the system killed it for memory",
                "dmesg says which; run it again: finished stages are kept",
            ) from died
        if error is not None:
            raise error from _WorkerTracebackError(told)
        return result

    def close(self) -> None:
        """Lets the process end after the function that it runs."""
        self.connection.close()

    def interrupt(self) -> None:
        """Asks the process to remove its partial output and end."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGINT)

    def join(self, seconds: float | None = None) -> None:
        """Waits for the end of a closed process."""
        self._process.join(seconds)

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.join()


class Workers:
    """The workers of a build, each started when a stage is submitted and none is idle.

    Args:
        most: number of stages that may run at once; 0 if all run in this process.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: list[Worker] = []
        self._idle: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for running stages; after an interrupt ends them."""
        interrupted = kind is not None and not issubclass(kind, Exception)
        deadline = time.monotonic() + GRACE_SECONDS if interrupted else None
        try:
            for worker in self._all:
                worker.close()
                if interrupted:
                    worker.interrupt()
            for worker in self._all:
                worker.join(None if deadline is None else max(0, deadline - time.monotonic()))
        finally:
            for worker in self._all:
                worker.kill()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Worker:
        """Runs a module's function in an idle worker or a new one."""
        if not self._idle:
            self._idle.append(Worker())
            self._all += self._idle
        worker = self._idle.pop()
        worker.submit(function, *arguments)
        return worker

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a module's function in an idle worker, or in this process if none is idle.

        A worker whose function raised is not used again: an error of its GPU would stay in it.

        Raises:
            BuildError: ``VIDC-BUILD-STAGE``, the worker died; ``name`` is what the message calls
                the function.
            Exception: as the function raised it.
        """
        if not self._idle:
            return function(*arguments)
        worker = self._idle.pop()
        worker.submit(function, *arguments)
        result = worker.result(name)
        self._idle.append(worker)
        return result

    def keep(self, worker: Worker, *, idle: bool) -> None:
        """Takes back a worker whose result was read, for another function or to end it.

        Args:
            worker: the worker.
            idle: True to reuse it; False ends it, and frees its CUDA context and PyTorch's cached
                memory.
        """
        if idle:
            self._idle.append(worker)
        else:
            worker.close()


def alone(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a module's function in a separate process, so that a crash does not end this one.

    Raises:
        BuildError: ``VIDC-BUILD-STAGE``, its process died; ``name`` is what the message calls it.
        Exception: as the function raised it.
    """
    with Workers(1) as workers:
        return workers.submit(function, *arguments).result(name)


def finished(workers: Collection[Worker]) -> list[Worker]:
    """Waits until one of the workers has a result or died, and returns those."""
    by_connection = {worker.connection: worker for worker in workers}
    # wait([]) would block forever.
    return [by_connection[ready] for ready in wait(by_connection)] if workers else []  # type: ignore


class _WorkerTracebackError(Exception):
    """The traceback of an exception in a worker, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@contextmanager
def _blocked_interrupt() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, parent: int) -> None:
    """Runs functions until the connection ends."""
    guard = _die_with(parent)
    # Always true: the reference keeps the guard's stdin open, whose end kills this process's group.
    while guard:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        result, error, told = None, None, ""
        try:
            result = function(*arguments)
        except SystemExit:  # Interrupted; the end of the interpreter would take a while.
            os._exit(130)
        except Exception as caught:  # noqa: BLE001 - raised again where the result is read
            error, told = _picklable(caught), traceback.format_exc()
        try:
            connection.send((result, error, told))
        except BrokenPipeError:  # The build failed elsewhere.
            return


def _picklable(error: Exception) -> Exception:
    """Returns the error, or a RuntimeError with its text if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - the exception's own code runs here
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _die_with(parent: int) -> subprocess.Popen[bytes]:
    """Makes this process and its children die with its parent.

    Returns the guard process, which kills this process's group once its stdin closes.
    """
    os.setpgid(0, 0)  # The terminal interrupts the build alone.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    guard = subprocess.Popen(
        [*_GUARD, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit()
    signal.signal(signal.SIGINT, _end_quietly)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return guard


def _end_quietly(*_: object) -> None:
    # Only once: a second interrupt would break the removal of partial output.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(130)
