"""The processors, and the disk under the cache."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator

from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.targets import match_gpu
from vidc.compiler.doctor.finding import Finding, Status
from vidc.plugins.errors import UnavailableError

LOW_SPACE_GB = 10.0
"""A 1.3B build keeps its weights, graphs and engines: about this much."""


def probe_cpu() -> Iterator[Finding]:
    """The instruction set that engines for the CPU may use."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("cpu", Status.GOOD, f"{platform.machine()}, {capability}, {os.cpu_count()} cores")


def probe_cuda() -> Iterator[Finding]:
    """Each GPU with the target that describes it."""
    import torch

    from vidc.runtime.compatibility import require_driver

    try:
        require_driver()
    except UnavailableError as error:
        yield Finding("cuda", Status.WARNING, error.message, error.hint)
        return
    if not torch.cuda.is_available():
        why = "none found" if torch.version.cuda else f"torch {torch.__version__} has no CUDA"
        yield Finding("cuda", Status.MISSING, why)
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        name, capability = f"cuda:{index}", f"{gpu.major}.{gpu.minor}"
        memory = gpu.total_memory / 1e9
        free = torch.cuda.mem_get_info(index)[0] / 1e9
        detail = f"{gpu.name}, compute capability {capability}, {free:.0f} of {memory:.0f} GB free"
        try:
            target = match_gpu(gpu.name, capability, memory)
        except UnavailableError as error:
            yield Finding(name, Status.WARNING, detail, error.message)
        else:
            yield Finding(name, Status.GOOD, f"{detail}: target {target.name}")


def probe_cache() -> Iterator[Finding]:
    """Whether the cache can be written and how much fits."""
    root = cache_root(os.environ)
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        detail = f"{root} cannot be written: {error.strerror}"
        yield Finding("cache", Status.BROKEN, detail, "set VIDC_CACHE to a folder of yours")
        return
    free = shutil.disk_usage(existing).free / 1e9
    low = free < LOW_SPACE_GB
    yield Finding(
        "cache",
        Status.WARNING if low else Status.GOOD,
        f"{root}, {free:.1f} GB free",
        "run `vidc cache prune` or set VIDC_CACHE to a larger disk" if low else "",
    )
