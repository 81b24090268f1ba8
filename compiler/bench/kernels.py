"""Kernels of a device, from torch's profiler."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.bench.clock import MILLISECONDS, Clock
from vidc.compiler.bench.work import Kind

_KINDS = (
    # Inductor names fused kernels after all their operations; only templates are matmuls.
    # vidc's ring write includes a norm and a rotation.
    (Kind.ELEMENTWISE, r"^(triton_(?!tem_)|cpp_fused)|\bvidc::(qk_norm|gelu)"),
    (Kind.ATTENTION, r"flash|fmha|attention|attn|sdpa"),
    (Kind.CONVOLUTION, r"conv|fprop|implicit_gemm"),
    (Kind.PRODUCT, r"gemm|nvjet|cutlass|cublas|(\b|_)(add|b)?mm(\b|_)|matmul|linear"),
    (Kind.COPY, r"memcpy|memset|copy|ring_write|index_put|scatter|transpose|permute|\bcat\b|"
                r"catarray|nchwtonhwc|nhwctonchw"),
    (Kind.ELEMENTWISE, r"elementwise|vectorized|reduce|norm|softmax|"
                       r"aten::(add|mul|sub|div|lerp|clamp|round|gelu|silu|mean|pow|sum|fill)"),
)  # fmt: skip
"""Kinds by name pattern; the first match decides."""
_NAME = 120
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Kernel:
    """Time of one kernel in one call of the profiled work.

    Attributes:
        name: the profiler's name, cut to 120 characters.
        kind: kind by name.
        calls: number of launches.
        ms: total time of all launches.
    """

    name: str
    kind: Kind
    calls: float
    ms: float


def kernels(work: Callable[[], object], device: torch.device, times: int) -> list[Kernel]:
    """Returns the kernels of one call, longest first, averaged over several calls.

    On a CPU these are torch operators; work inside an engine's own library is not seen.
    """
    cuda = device.type == "cuda"
    clock = Clock(device)
    clock.time(work)
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as watched:
        for _ in range(times):
            work()
        clock.wait()
    found = []
    for event in watched.key_averages():
        microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        if microseconds > 0:
            ms = microseconds * MILLISECONDS / _MICROSECONDS / times
            found.append(Kernel(event.key[:_NAME], kind(event.key), event.count / times, ms))
    return sorted(found, key=lambda each: -each.ms)


def kind(name: str) -> Kind:
    """Returns the kind of a kernel by its name."""
    return next((each for each, names in _KINDS if re.search(names, name.lower())), Kind.OTHER)
