"""Whether a bundle's engines can run on this machine."""

import re

import torch

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.runtime.manifest import Engine, Manifest, Target

_TORCH_LOADERS = frozenset({"aoti"})
"""Loaders whose engines call into libtorch, which keeps old symbols but lacks future ones."""

_X86_ORDER = ("DEFAULT", "AVX2", "AVX512")
"""Instruction sets of which each contains those before it, as torch names them."""


def check(manifest: Manifest, device: torch.device) -> tuple[str, ...]:
    """Refuses a bundle whose engines this machine cannot run.

    Args:
        manifest: the bundle's manifest.
        device: where its engines shall run.

    Returns:
        Notes for the user: what works here but was built for something else.

    Raises:
        UnavailableError: ``VIDC-BUNDLE-ABI``, built against other operators; ``VIDC-BUNDLE-TORCH``,
            by a newer torch; ``VIDC-BUNDLE-GPU``, for another device; ``VIDC-BUNDLE-CPU``, for
            CPU instructions that are absent here.
    """
    if manifest.plugin_abi != PLUGIN_ABI:
        raise UnavailableError(
            "VIDC-BUNDLE-ABI",
            f"{manifest.name} was built against plugin ABI {manifest.plugin_abi}; "
            f"this vidc has {PLUGIN_ABI}",
            "build the bundle again with this vidc, or run it with the vidc that built it",
        )
    for component, engine in manifest.engines.items():
        if engine.loader in _TORCH_LOADERS:
            _check_torch(component, engine)
    _check_instructions(manifest.target)
    return _check_device(manifest, device)


def _check_torch(component: str, engine: Engine) -> None:
    built, here = _release(engine.version), _release(torch.__version__)
    if not built or built > here:
        raise UnavailableError(
            "VIDC-BUNDLE-TORCH",
            f"engine {component} was built by torch {engine.version[:64]!r}, newer than the "
            f"{torch.__version__} that is installed",
            f"install torch {engine.version[:64]} or newer, or build the bundle again",
        )


def _release(version: str) -> tuple[int, ...]:
    """Release numbers without the local part: (2, 13, 0) of ``2.13.0+cu130``; () if none."""
    match = re.match(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", version)
    return tuple(int(number or 0) for number in match.groups()) if match else ()


def _check_instructions(target: Target) -> None:
    needed = target.instruction_set
    if needed is None:
        return
    here = torch.backends.cpu.get_cpu_capability()
    contained = _X86_ORDER[: _X86_ORDER.index(here) + 1] if here in _X86_ORDER else (here,)
    if needed not in contained:
        raise UnavailableError(
            "VIDC-BUNDLE-CPU",
            f"the engines use {needed[:64]!r} instructions, built for {target.name}; "
            f"this CPU has {here}",
            "build the bundle on this machine, or run it on one with these instructions",
        )


def _check_device(manifest: Manifest, device: torch.device) -> tuple[str, ...]:
    target = manifest.target
    if target.compute_capability is None:
        if device.type != "cpu":
            raise _wrong_device(manifest, f"this is {device}")
        return ()
    if device.type != "cuda":
        raise _wrong_device(manifest, f"this is {device}")
    if not torch.cuda.is_available():
        raise _wrong_device(manifest, "torch finds no CUDA device here")
    name = torch.cuda.get_device_name(device)
    capability = "{}.{}".format(*torch.cuda.get_device_capability(device))
    if capability != target.compute_capability:
        raise _wrong_device(manifest, f"this is {name} (compute capability {capability})")
    if not _names(target.name, name):
        return (f"{manifest.name} was tuned for {target.name} and runs here on {name}",)
    return ()


def _wrong_device(manifest: Manifest, found: str) -> UnavailableError:
    target = manifest.target
    wanted = target.name
    if target.compute_capability is not None:
        wanted += f" (compute capability {target.compute_capability})"
    return UnavailableError(
        "VIDC-BUNDLE-GPU",
        f"{manifest.name} was built for {wanted}; {found}",
        f"run it where it was built for, or build preset {manifest.preset} for this device "
        "(vidc build --gpu auto)",
    )


def _names(target: str, device: str) -> bool:
    """Whether target ``rtx4090`` means the device "NVIDIA GeForce RTX 4090"."""
    pattern = re.sub(r"(?<=[a-z])(?=[0-9])", " ?", re.escape(target.lower()))
    return re.search(rf"\b{pattern}\b", device.lower()) is not None
