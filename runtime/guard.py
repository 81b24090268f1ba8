"""Guard of a session's public calls against other threads, forks and the caller's torch state."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from threading import Lock, RLock, get_ident
from types import FunctionType
from typing import Any

import torch

from vidc.plugins.errors import UnavailableError, UsageError, VidcError
from vidc.runtime.precision import exact_float32

AFTER_FAILURE = ("reset", "close")
"""Calls that a failed session still allows."""
_process: int | None = None
"""Id of the process that first used the runtime. A forked child inherits the value."""


def is_forked() -> bool:
    """Returns True in a child that was forked after its parent used the runtime."""
    return _process is not None and _process != os.getpid()


def require_own_process() -> None:
    """Refuses a forked child, in which torch's threads do not run; notes the first process.

    Raises:
        UnavailableError: ``VIDC-SESSION-FORK``.
    """
    global _process
    if is_forked():
        raise UnavailableError(
            "VIDC-SESSION-FORK",
            f"process {os.getpid()} was forked after process {_process} had loaded a bundle, and "
            "the threads and GPU of a process do not survive a fork",
            "load the bundle in the worker alone, or start workers with "
            'multiprocessing.get_context("spawn")',
        )
    _process = os.getpid()


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Keeps the caller's torch state out of the block and restores it afterwards.

    This covers the state of a thread: grad and inference mode, autocast, default device, function
    modes and the current GPU; and of the process, the precision of float32 matmuls. The default
    dtype belongs to the whole process and stays, so the runtime names the dtype of each tensor that
    it makes.
    """
    with ExitStack() as stack:
        stack.enter_context(exact_float32())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        yield


class WorkLock:
    """Lock of a bundle's sessions: one of them at a time puts work on the device.

    A thread that has it is refused, since it would wait for itself.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = 0

    def __enter__(self) -> None:
        """Waits for other threads.

        Raises:
            UsageError: ``VIDC-SESSION-BUSY``.
        """
        if self._owner == get_ident():
            raise UsageError(
                "VIDC-SESSION-BUSY",
                "a session was called while this thread is in another call of the same bundle, as "
                "a progress callback or a signal handler is",
                "return from it first: call the session after the call that is running",
            )
        self._lock.acquire()
        self._owner = get_ident()

    def __exit__(self, *_: object) -> None:
        self._owner = 0
        self._lock.release()


class Guard:
    """Admits one thread at a time to a session's calls; after a failure, only ``AFTER_FAILURE``.

    Args:
        device: the session's device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = RLock()
        self._call = ""
        self._failure: Callable[[], VidcError] | None = None

    @contextmanager
    def call(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Runs the block as one call of the session; the thread's nested calls are part of it.

        Args:
            name: name of the method.
            check: raises the error of an earlier call that the device has reported since.

        Raises:
            UnavailableError: ``VIDC-SESSION-FORK``.
            UsageError: ``VIDC-SESSION-BUSY``, another thread is in a call;
                ``VIDC-SESSION-FAILED``, an earlier call failed midway.
            VidcError: the error of ``end``, or as raised by ``check``.
        """
        require_own_process()
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "VIDC-SESSION-BUSY",
                f"{name} was called while another thread is in {self._call or 'another call'} of "
                "the same session",
                "open a session for each thread, or let threads take turns with a lock",
            )
        try:
            if self._call:
                yield
                return
            self._call = name
            try:
                with isolated(self._device):
                    if name not in AFTER_FAILURE:
                        if self._failure is not None:
                            raise self._failure()
                        check()
                    yield
            finally:
                self._call = ""
        finally:
            self._lock.release()

    def fail(self, work: str, error: BaseException) -> None:
        """Records that work failed midway: calls raise VIDC-SESSION-FAILED until ``recover``.

        The first failure counts. Stores only the error's text, as its traceback would keep tensors
        alive.
        """
        if self._failure is not None:
            return
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        self._failure = partial(
            UsageError,
            "VIDC-SESSION-FAILED",
            f"{work or self._call} failed midway and left the session in no known state: {reason}",
            "session.reset(seed=...) makes it as new, then set the prompt again",
        )

    def end(self, error: VidcError) -> VidcError:
        """Ends the session: calls raise this error until ``recover``. Returns the error."""
        self._failure = partial(type(error), error.code, error.message, error.hint)
        return error

    def recover(self) -> None:
        """Allows calls again."""
        self._failure = None


def guard_calls(cls: type) -> None:
    """Makes each public method and property that a class defines go through its session's guard.

    ``close`` calls the guard itself, since a closed session has none.
    """
    for name, value in [*vars(cls).items()]:
        if name.startswith("_") or name == "close":
            continue
        if isinstance(value, FunctionType):
            setattr(cls, name, _guarded(value))
        elif isinstance(value, property) and value.fget is not None:
            setattr(cls, name, value.getter(_guarded(value.fget)))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._guard.call(name, self._check):
            return method(self, *args, **kwargs)

    return call
