"""Estimates of the GPU memory of each stage, which limit how many run at once.

They are rough: element counts that each part estimates, times bytes per element.
"""

from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import Target
from vidc.exporters.models import PRECISIONS

CONTEXT = 700_000_000
"""Bytes that CUDA takes in every process."""
RESERVE = 2_000_000_000
"""Bytes of a GPU that stay free for the driver and the process that runs the build."""
FLOAT32 = 4
"""Bytes of a float32 element."""


def capacity(target: Target) -> int | None:
    """Returns the bytes of GPU memory that all running stages may take; None for a CPU."""
    if not target.is_gpu or target.memory_gb is None:
        return None
    return target.memory_gb * 10**9 - RESERVE


def compile_bytes(settings: Settings, component: str) -> int:
    """Returns the bytes of GPU memory that compiling a component takes; 0 for a CPU.

    The program's weights and example inputs, states included, are moved to the GPU, and inductor
    benchmarks its kernels on tensors of these sizes.
    """
    if not settings.target.is_gpu:
        return 0
    group = settings.model.components[component]
    part = settings.model.parts[group]
    elements = part.weights_elements + part.working_elements(component)
    return CONTEXT + elements * PRECISIONS[settings.precision[group]].itemsize


def golden_bytes(settings: Settings) -> int:
    """Returns the bytes of GPU memory that golden data take; 0 for a CPU.

    Golden data are played in float32 first, with all the weights loaded.
    """
    if not settings.target.is_gpu:
        return 0
    parts = settings.model.parts.values()
    return CONTEXT + sum(p.weights_elements + p.playing_elements for p in parts) * FLOAT32
