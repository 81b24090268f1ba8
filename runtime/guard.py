"""Guard of a session's public calls: one thread, one process, nothing of the caller's torch."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from threading import RLock
from types import FunctionType
from typing import Any

import torch

from vidc.plugins.errors import UnavailableError, UsageError, VidcError

ALWAYS = ("reset", "close")
"""Calls that a failed session allows."""
_process: int | None = None
"""Id of the process that first used the runtime; a child inherits it when it is forked."""


def is_forked() -> bool:
    """Returns True in a child that was forked after its parent had used the runtime."""
    return _process is not None and _process != os.getpid()


def require_own_process() -> None:
    """Refuses a forked child, whose copies of torch's threads do not run.

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
def apart(device: torch.device) -> Iterator[None]:
    """Keeps the caller's torch state out of the block and restores it afterwards.

    Grad and inference mode, autocast, default device, function modes and the current GPU belong
    to a thread. The default dtype belongs to the process, where another thread may rely on it:
    the runtime names the dtype of each tensor that it makes.
    """
    with ExitStack() as stack:
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


class Guard:
    """Admits one thread at a time to a session's calls, and none after a failure until a reset.

    Args:
        device: of the session.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = RLock()
        self._call = ""
        self._failure: Callable[[], VidcError] | None = None

    @contextmanager
    def call(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Makes the block one call of the session; calls inside it belong to it.

        Args:
            name: of the method.
            check: raises what ended the session on the device since the last call.

        Raises:
            UnavailableError: ``VIDC-SESSION-FORK``.
            UsageError: ``VIDC-SESSION-BUSY``, another thread is in a call;
                ``VIDC-SESSION-FAILED``, an earlier call failed midway.
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
                with apart(self._device):
                    if name not in ALWAYS:
                        if self._failure is not None:
                            raise self._failure()
                        check()
                    yield
            finally:
                self._call = ""
        finally:
            self._lock.release()

    def fail(self, work: str, error: BaseException) -> None:
        """Notes that work ended midway: calls are refused until ``recover``.

        Only the text of the error is kept: its traceback would keep tensors alive.
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
        """Ends the session with an error, raised by each call until ``recover``; returns it."""
        self._failure = partial(type(error), error.code, error.message, error.hint)
        return error

    def recover(self) -> None:
        """Allows calls again."""
        self._failure = None


def guard_calls(cls: type) -> None:
    """Puts each public method and property that a session class defines behind its guard."""
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
