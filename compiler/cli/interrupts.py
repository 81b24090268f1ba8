"""Handling of SIGINT and SIGTERM that repeats a lost KeyboardInterrupt."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_DEFAULTS: dict[signal.Signals, Callable[..., Any] | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Raises KeyboardInterrupt at SIGINT or SIGTERM, and again until the command ends.

    Python drops an interrupt that arrives in a destructor, and libraries in C++ and Rust turn one
    that arrives in their callbacks into an error of their own. While any exception is handled,
    nothing is raised again, so that handlers and ``finally`` blocks run to their end.

    Uses SIGALRM. Does nothing outside the main thread, and leaves a signal that is already ignored
    or handled, as SIGINT is under ``nohup``.

    Args:
        seconds: time between two attempts.

    Attributes:
        received: True once a signal came.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self.received = False
        self._seconds = seconds
        self._taken: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._taken = [s for s, usual in _DEFAULTS.items() if signal.getsignal(s) == usual]
        if self._taken:
            self._alarm = signal.signal(signal.SIGALRM, self._again)
            self._unraisable, sys.unraisablehook = sys.unraisablehook, self._dropped
        for each in self._taken:
            signal.signal(each, self._first)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._taken:
            signal.signal(each, _DEFAULTS[each])
        if self._taken:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)
            sys.unraisablehook = self._unraisable

    def _first(self, _: int, __: FrameType | None) -> None:
        self.received = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
        raise KeyboardInterrupt

    def _again(self, _: int, __: FrameType | None) -> None:
        if sys.exc_info()[0] is None:
            raise KeyboardInterrupt

    def _dropped(self, unraisable: Any) -> None:
        """Prints what Python drops, unless it is an interrupt, which the timer raises again."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable(unraisable)
