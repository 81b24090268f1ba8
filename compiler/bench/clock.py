"""Time on a device, where work may still be under way when the call that asked for it returns."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
MILLISECONDS = 1e3


class Clock:
    """Measures work on one device, in milliseconds."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device

    def time(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """What the work gives, and how long it takes on an idle device until all of it is done."""
        self.wait()
        start = time.perf_counter()
        result = work()
        self.wait()
        return result, (time.perf_counter() - start) * MILLISECONDS

    def mark(self) -> Any:
        """The time at which the current stream is done with all it was given so far."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reach(self, mark: Any) -> None:
        """Waits for a mark."""
        if self._cuda:
            mark.synchronize()

    def between(self, first: Any, second: Any) -> float:
        """From one mark to a later one; waits for both."""
        if not self._cuda:
            return float(second - first) * MILLISECONDS
        self.reach(second)
        return float(first.elapsed_time(second))

    def wait(self) -> None:
        """Until the device is idle."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
