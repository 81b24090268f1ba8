"""The kernels that a device runs, as torch's profiler sees them."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.bench.clock import MILLISECONDS, Clock
from vidc.compiler.bench.work import Kind

_KINDS = (
    # Inductor names what it fuses after all that went into it; only templates multiply.
    # The ring write among vidc's own does a norm and a rotation on the way.
    (Kind.ELEMENTWISE, r"^(triton_(?!tem_)|cpp_fused)|\bvidc::(qk_norm|gelu)"),
    (Kind.ATTENTION, r"flash|fmha|attention|attn|sdpa"),
    (Kind.CONVOLUTION, r"conv|fprop|implicit_gemm"),
    (Kind.PRODUCT, r"gemm|nvjet|cutlass|cublas|(\b|_)(add|b)?mm(\b|_)|matmul|linear"),
    (Kind.COPY, r"memcpy|memset|copy|ring_write|index_put|scatter|transpose|permute|\bcat\b|"
                r"catarray|nchwtonhwc|nhwctonchw"),
    (Kind.ELEMENTWISE, r"elementwise|vectorized|reduce|norm|softmax|"
                       r"aten::(add|mul|sub|div|lerp|clamp|round|gelu|silu|mean|pow|sum|fill)"),
)  # fmt: skip
"""The first pattern that a kernel's name matches decides; names are all that is known of most."""
_NAME = 120
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Kernel:
    """What one kernel took in one call of the work that was watched.

    Attributes:
        name: as the profiler gives it, cut to 120 characters.
        kind: by its name.
        calls: of the kernel.
        ms: of all of them together.
    """

    name: str
    kind: Kind
    calls: float
    ms: float

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "kind": self.kind.value}


def kernels(work: Callable[[], object], device: torch.device, times: int) -> list[Kernel]:
    """The kernels of one call of the work, the longest first: the mean of so many calls.

    On a CPU these are torch's own operators; what an engine does within one call of its own
    library is not seen.
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
    """What a kernel is for, by its name."""
    return next((each for each, names in _KINDS if re.search(names, name.lower())), Kind.OTHER)
