"""Timing of asynchronous work on a device, and the peaks of the device."""

import time
from collections.abc import Callable
from statistics import median
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
        """Returns the result of work and its time in ms, from an idle device until all is done."""
        self.wait()
        start = time.perf_counter()
        result = work()
        self.wait()
        return result, (time.perf_counter() - start) * MILLISECONDS

    def mark(self) -> Any:
        """Returns a mark that is reached once the current stream finishes its queued work."""
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
        """Returns the ms between two marks and waits for both."""
        if not self._cuda:
            return float(second - first) * MILLISECONDS
        self.reach(second)
        return float(first.elapsed_time(second))

    def wait(self) -> None:
        """Waits until the device is idle."""
        if self._cuda:
            torch.cuda.synchronize(self._device)


_SIDES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024, 2048)}
_COPIED = {"cuda": 2**31, "cpu": 2**28}
"""Bytes to copy, far above any cache size."""
_WARMUP, _SAMPLES = 3, 10
_TERA, _GIGA = 1e12, 1e9


def matmul_tflops(dtype: torch.dtype, device: torch.device) -> float:
    """Returns the best TFLOP/s over three sizes of square matmuls."""
    return max(_matmul(side, dtype, device) for side in _SIDES[device.type])


def copy_gbps(device: torch.device) -> float:
    """Returns the GB/s read and written by a copy in device memory."""
    size = _COPIED[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device) / _GIGA


def _matmul(side: int, dtype: torch.dtype, device: torch.device) -> float:
    generator = torch.Generator(device).manual_seed(0)
    # Random values: zeros draw less power and run faster than real work.
    a, b = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / _seconds(lambda: torch.mm(a, b, out=out), device) / _TERA


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    clock = Clock(device)
    times = [clock.time(work)[1] for _ in range(_WARMUP + _SAMPLES)]
    return median(times[_WARMUP:]) / MILLISECONDS
