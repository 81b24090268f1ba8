"""Estimates of the GPU memory that each stage takes, so that not too many run at once.

Estimates in round numbers, from the elements that each part says its network holds.
"""

from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import Target
from vidc.exporters.models import PRECISIONS

CONTEXT = 700_000_000
"""Bytes that CUDA takes in every process."""
RESERVE = 2_000_000_000
"""Bytes of a GPU that are left free: for the driver and the process that runs the build."""
FLOAT32 = 4
"""Bytes an element."""


def capacity(target: Target) -> int | None:
    """Bytes of the target's memory that stages may take together; None where it is no GPU."""
    if not target.is_gpu or target.memory_gb is None:
        return None
    return target.memory_gb * 10**9 - RESERVE


def compile_bytes(settings: Settings, component: str) -> int:
    """Bytes of the target's memory that compiling a component takes; 0 for a CPU.

    The program's weights and example inputs, states included, are moved there, and inductor tries
    its kernels out on tensors of their sizes.
    """
    if not settings.target.is_gpu:
        return 0
    group = settings.model.components[component]
    part = settings.model.parts[group]
    elements = part.weights_elements + part.working_elements(component)
    return CONTEXT + elements * PRECISIONS[settings.precision[group]].itemsize


def golden_bytes(settings: Settings) -> int:
    """Bytes of the target's memory that golden data take; 0 for a CPU.

    They are played in float32 first, whatever the precision, with all the weights loaded.
    """
    if not settings.target.is_gpu:
        return 0
    parts = settings.model.parts.values()
    return CONTEXT + sum(p.weights_elements + p.playing_elements for p in parts) * FLOAT32
