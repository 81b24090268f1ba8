"""Targets: the GPUs and the CPU that engines are built for, from ``configs/targets``."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from vidc.compiler.config.toml import read_toml, shipped
from vidc.exporters.table import Table
from vidc.plugins.errors import UnavailableError, UsageError, nearest

AUTO = "auto"
"""Name for the device of this machine."""


@dataclass(frozen=True)
class Peaks(Table):
    """Dense peaks: TFLOP/s (TOP/s for int8) by precision, and memory bandwidth in GB/s."""

    fp32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    memory: float | None = None


@dataclass(frozen=True)
class Recipes(Table):
    """Default recipe of each 8-bit precision on a target, and the reason."""

    fp8: str | None = None
    fp8_reason: str = ""
    int8: str | None = None
    int8_reason: str = ""


@dataclass(frozen=True)
class Target(Table):
    """Device that engines are built for; only the CPU has no compute capability.

    ``tensorrt`` is the product that builds for it: ``tensorrt``, or ``tensorrt_rtx``.
    """

    name: str
    description: str
    precisions: tuple[str, ...]
    compute_capability: str | None = None
    memory_gb: int | None = None
    tensorrt: str | None = None
    peaks: Peaks = Peaks()
    recipes: Recipes = Recipes()
    notes: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """True if engines need CUDA."""
        return self.compute_capability is not None

    @property
    def device_type(self) -> str:
        """PyTorch's name for its kind of device: ``cuda`` or ``cpu``."""
        return "cuda" if self.is_gpu else "cpu"

    def to_json(self) -> dict[str, Any]:
        """Returns the identity of the target as plain JSON values."""
        return {
            "name": self.name,
            "compute_capability": self.compute_capability,
            "memory_gb": self.memory_gb,
        }


@cache
def targets() -> dict[str, Target]:
    """Returns every target of ``configs/targets`` by name."""
    found = {}
    for name, file in shipped("targets").items():
        table = read_toml(file)
        where = f"targets/{name}"
        table["peaks"] = Peaks.from_table(table.get("peaks", {}), f"{where}.peaks")
        table["recipes"] = Recipes.from_table(table.get("recipes", {}), f"{where}.recipes")
        found[name] = Target.from_table({**table, "name": name}, where)
    return found


def find_target(name: str, origin: str) -> Target:
    """Returns a target by name; ``auto`` is this machine's GPU, or the CPU without one.

    Args:
        name: a target or ``auto``, which imports torch and looks for a GPU.
        origin: where the name was given, for the message.

    Raises:
        UsageError: ``VIDC-CONFIG-TARGET`` for an unknown name.
        UnavailableError: ``VIDC-TARGET-AUTO`` for a GPU that no target describes,
            ``VIDC-GPU-DRIVER`` for one whose driver is too old for this torch.
    """
    if name == AUTO:
        return _present()
    if name not in targets():
        raise UsageError(
            "VIDC-CONFIG-TARGET",
            f"no target {name!r} ({origin})",
            nearest(name, [*targets(), AUTO]),
        )
    return targets()[name]


def _present() -> Target:
    import torch

    from vidc.runtime.compatibility import require_driver

    require_driver()
    if not torch.cuda.is_available():
        return targets()["cpu"]
    gpu = torch.cuda.get_device_properties(0)
    return match_gpu(gpu.name, f"{gpu.major}.{gpu.minor}", gpu.total_memory / 1e9)


def match_gpu(gpu: str, compute_capability: str, memory_gb: float) -> Target:
    """Returns the target of a GPU by compute capability, then by name or nearest memory size.

    An RTX card matches other RTX cards first, and a data center GPU other data center GPUs.

    Args:
        gpu: the name the driver gives, such as ``NVIDIA GeForce RTX 4090``.
        compute_capability: such as ``8.9``.
        memory_gb: the GPU's memory in 10^9 bytes.

    Raises:
        UnavailableError: ``VIDC-TARGET-AUTO`` if no target has its compute capability.
    """
    from vidc.runtime.compatibility import names_gpu  # Imports torch.

    alike = [t for t in targets().values() if t.compute_capability == compute_capability]
    if not alike:
        raise UnavailableError(
            "VIDC-TARGET-AUTO",
            f"no target has the compute capability {compute_capability} of {gpu}",
            f"pass --gpu with one of: {', '.join(targets())}",
        )
    for target in alike:
        if names_gpu(target.name, gpu):
            return target
    card = "RTX" in gpu

    def distance(target: Target) -> tuple[bool, float]:
        return (target.name.startswith("rtx") != card, abs((target.memory_gb or 0) - memory_gb))

    return min(alike, key=distance)


def gpu_unavailable(target: Target) -> str | None:
    """Returns why engines for a GPU target cannot run here, or None if they can."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    found = "{}.{}".format(*torch.cuda.get_device_capability())
    if found != target.compute_capability:
        name = torch.cuda.get_device_name()
        return f"the GPU here is {name}, of compute capability {found}"
    return None
