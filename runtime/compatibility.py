"""Compatibility of a bundle's engines with this machine."""

import os
import re
from collections.abc import Iterable
from importlib.metadata import version

import torch

from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.cuda_driver import driver_version
from vidc.plugins.errors import UnavailableError
from vidc.runtime import engines
from vidc.runtime.manifest import Manifest

_MATH_MODES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")


def cpu_features() -> frozenset[str]:
    """Returns this CPU's instruction set extensions."""
    present = torch.cpu.get_capabilities()
    return frozenset(name for name, value in present.items() if value is True)


def check(manifest: Manifest, device: torch.device) -> tuple[str, ...]:
    """Refuses a bundle whose engines this machine cannot run.

    Args:
        manifest: the bundle's manifest.
        device: the device to run the engines on.

    Returns:
        Notes for the user: parts that work here but were built for something else.

    Raises:
        UnavailableError: ``VIDC-BUNDLE-ABI``, the bundle was built against another plugin ABI;
            ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``, the kernel library that an engine calls
            is missing or has another ABI; ``VIDC-BUNDLE-TORCH``, built by a newer torch;
            ``VIDC-BUNDLE-GPU``, built for another device; ``VIDC-BUNDLE-CPU``, this CPU lacks
            instructions; ``VIDC-GPU-DRIVER``, the GPU's driver is too old.
    """
    if manifest.plugin_abi != PLUGIN_ABI:
        raise UnavailableError(
            "VIDC-BUNDLE-ABI",
            f"{manifest.name} was built against plugin ABI {manifest.plugin_abi}; "
            f"this vidc has {PLUGIN_ABI}",
            "build the bundle again with this vidc, or run it with the vidc that built it",
        )
    for component, engine in manifest.engines.items():
        if engine.requires.torch is not None:
            _check_torch(component, engine.requires.torch)
        _check_instructions(component, engine.requires.cpu_features)
        if engine.requires.operators and device.type != "cpu":
            _check_operators(component, engine.requires.operators)
    return _check_device(manifest, device)


def other_versions(manifest: Manifest) -> tuple[str, ...]:
    """Returns notes on tools of other versions than those that built and validated the bundle.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOADER``.
    """
    built = {("vidc", manifest.tools.get("vidc", "unknown"), version("vidc"))}
    for engine in manifest.engines.values():
        here = engines.version(engine.loader)
        if here is not None:
            built.add((engine.loader, engine.version, here))
    return tuple(
        f"{manifest.name} was built and validated with {tool} {then[:64]}, and {here} is installed"
        for tool, then, here in sorted(built)
        if then != here
    )


def other_arithmetic() -> tuple[str, ...]:
    """Returns notes on variables that let oneDNN compute float32 products in another precision.

    oneDNN reads them once in a process, so nothing here can turn them off.
    """
    found = {name: os.environ.get(name, "") for name in _MATH_MODES}
    return tuple(
        f"{name}={mode[:32]} lets AOTInductor engines on a CPU multiply float32 numbers with fewer "
        "bits than the bundle was validated with: unset it"
        for name, mode in found.items()
        if mode.upper() not in ("", "STRICT")
    )


def require_driver() -> None:
    """Refuses a driver that is too old for this torch, which then finds no GPU.

    Raises:
        UnavailableError: ``VIDC-GPU-DRIVER``.
    """
    built, found = torch.version.cuda, driver_version()
    if built is None or found is None or found[0] >= int(built.partition(".")[0]):
        return
    raise UnavailableError(
        "VIDC-GPU-DRIVER",
        f"the GPU's driver knows CUDA {found[0]}.{found[1]} at most, and torch "
        f"{torch.__version__} was built for CUDA {built}",
        "update the driver (CUDA 13 came with 580), or install a torch built for the older CUDA",
    )


def _check_torch(component: str, version: str) -> None:
    built, here = _release(version), _release(torch.__version__)
    if not built or built > here:
        raise UnavailableError(
            "VIDC-BUNDLE-TORCH",
            f"engine {component} was built by torch {version[:64]!r}, newer than the "
            f"{torch.__version__} that is installed",
            f"install torch {version[:64]} or newer, or build the bundle again",
        )


def _release(version: str) -> tuple[int, ...]:
    """Returns the release numbers of a version: ``2.13.0+cu130`` gives (2, 13, 0); () if none."""
    match = re.match(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", version)
    return tuple(int(number or 0) for number in match.groups()) if match else ()


def _check_instructions(component: str, needed: Iterable[str]) -> None:
    missing = sorted(set(needed) - cpu_features())
    if missing:
        raise UnavailableError(
            "VIDC-BUNDLE-CPU",
            f"engine {component} uses instructions that this CPU lacks: {', '.join(missing)[:200]}",
            "build the bundle on this machine, or run it on one with these instructions",
        )


def _check_operators(component: str, operators: tuple[str, ...]) -> None:
    from vidc.plugins import engine_operators  # Loads the library.

    unknown = sorted(set(operators) - set(engine_operators.OPERATORS))
    if unknown:
        raise UnavailableError(
            "VIDC-BUNDLE-ABI",
            f"engine {component} calls vidc::{unknown[0][:64]}, which this vidc does not have",
            "build the bundle again with this vidc, or run it with the vidc that built it",
        )
    fault = loading.torch_library_error()
    if fault is not None:
        names = ", ".join(f"vidc::{name}" for name in operators)
        raise UnavailableError(
            fault.code,
            f"engine {component} calls {names}: {fault.message}",
            f"{fault.hint}; or build the bundle again on this machine, which leaves them out",
        )


def _check_device(manifest: Manifest, device: torch.device) -> tuple[str, ...]:
    target = manifest.target
    if target.compute_capability is None:
        if device.type != "cpu":
            raise _wrong_device(manifest, f"this is {device}")
        return ()
    if device.type != "cuda":
        raise _wrong_device(manifest, f"this is {device}")
    require_driver()
    if not torch.cuda.is_available():
        raise _wrong_device(manifest, "torch finds no CUDA device here")
    name = torch.cuda.get_device_name(device)
    capability = "{}.{}".format(*torch.cuda.get_device_capability(device))
    if capability not in _capabilities(manifest, target.compute_capability):
        raise _wrong_device(manifest, f"this is {name} (compute capability {capability})")
    if capability != target.compute_capability:
        return (
            f"{manifest.name} was tuned and validated for {target.name} and runs here on {name}, "
            f"of compute capability {capability}, which its engines were built for as well",
        )
    if not names_gpu(target.name, name):
        return (f"{manifest.name} was tuned for {target.name} and runs here on {name}",)
    return ()


def _capabilities(manifest: Manifest, target: str) -> tuple[str, ...]:
    """Returns the compute capabilities that every engine of a bundle supports."""
    found = [e.requires.compute_capabilities or (target,) for e in manifest.engines.values()]
    first = found[0] if found else (target,)
    return tuple(each for each in first if all(each in engine for engine in found))


def _wrong_device(manifest: Manifest, found: str) -> UnavailableError:
    target = manifest.target
    wanted = target.name
    if target.compute_capability is not None:
        named = ", ".join(_capabilities(manifest, target.compute_capability))
        wanted += f" (compute capability {named})"
    return UnavailableError(
        "VIDC-BUNDLE-GPU",
        f"{manifest.name} was built for {wanted}; {found}",
        f"run it where it was built for, or build preset {manifest.preset} for this device "
        "(vidc build --gpu auto)",
    )


def names_gpu(target: str, device: str) -> bool:
    """Returns True if a target names a device, as ``rtx4090`` names "NVIDIA GeForce RTX 4090"."""
    pattern = re.sub(r"(?<=[a-z])(?=[0-9])", " ?", re.escape(target.lower()))
    return re.search(rf"\b{pattern}\b", device.lower()) is not None
