"""What this device can do: matrix products and copies, measured as the components are."""

from collections.abc import Callable
from statistics import median

import torch

from vidc.compiler.bench.clock import MILLISECONDS, Clock

_SIDES = {"cuda": (4096, 8192, 16384), "cpu": (512, 1024, 2048)}
_COPIED = {"cuda": 2**31, "cpu": 2**28}
"""Bytes, far more than any cache holds."""
_WARMUP, _SAMPLES = 3, 10
_TERA, _GIGA = 1e12, 1e9


def matmul_tflops(dtype: torch.dtype, device: torch.device) -> float:
    """TFLOP/s of the best of three sizes of square matrix products."""
    return max(_matmul(side, dtype, device) for side in _SIDES[device.type])


def copy_gbps(device: torch.device) -> float:
    """GB/s read and written by a copy within the device's memory."""
    size = _COPIED[device.type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device) / _GIGA


def _matmul(side: int, dtype: torch.dtype, device: torch.device) -> float:
    generator = torch.Generator(device).manual_seed(0)
    # Of random values: zeros draw less power and run faster than any real work.
    a, b = (torch.randn(side, side, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / _seconds(lambda: torch.mm(a, b, out=out), device) / _TERA


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    clock = Clock(device)
    times = [clock.time(work)[1] for _ in range(_WARMUP + _SAMPLES)]
    return median(times[_WARMUP:]) / MILLISECONDS
