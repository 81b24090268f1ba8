"""Coded errors for faults while engines run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

import torch

from vidc.plugins.errors import UnavailableError

NO_MEMORY = "CUDA error: out of memory"
"""Text in the message of a ``torch.AcceleratorError`` after which the GPU still works."""


class EngineRunError(UnavailableError, RuntimeError):
    """``VIDC-ENGINE-RUN``: an engine failed while it ran.

    A RuntimeError too, so that ``gpu_faults`` looks for the cause on a GPU.
    """


def engine_error(file: str, error: object) -> EngineRunError:
    """Returns the error of an engine that failed.

    Args:
        file: of the engine in the bundle, named after its component.
        error: as the engine's library raised it.
    """
    return EngineRunError(
        "VIDC-ENGINE-RUN",
        f"engine {PurePosixPath(file).stem} ({file}) failed while it ran: "
        f"{str(error).strip()[:300]}",
        "`vidc validate BUNDLE` says if the bundle is sound here; build it again if it is not",
    )


@contextmanager
def gpu_faults(device: torch.device) -> Iterator[None]:
    """Turns GPU faults inside the block into coded errors; does nothing on a CPU.

    An AOTInductor engine reports only that a call failed, so the reason comes from the allocator
    and the device.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, out of memory; ``VIDC-GPU-LOST``, the device no
            longer answers.
    """
    if device.type != "cuda":
        yield
        return
    refused = 0
    try:
        refused = _refusals(device)
        yield
    except RuntimeError as error:
        reported = isinstance(error, torch.AcceleratorError)
        if reported and NO_MEMORY not in str(error):
            raise _lost(device, error) from error
        if reported or isinstance(error, torch.OutOfMemoryError) or _refusals(device) > refused:
            raise _out_of_memory(device) from error
        if not _answers(device):
            raise _lost(device, error) from error
        raise


def _refusals(device: torch.device) -> int:
    """Returns how often the device ran out of memory for torch in this process."""
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0))


def _answers(device: torch.device) -> bool:
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def _out_of_memory(device: torch.device) -> UnavailableError:
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return _no_context(device)
    held = torch.cuda.memory_reserved(device)
    return UnavailableError(
        "VIDC-GPU-MEMORY",
        f"{device} has no memory left: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free, "
        f"this process holds {held / 1e9:.1f} GB",
        "nvidia-smi shows who holds the rest; end it, or build with a smaller stream.window, "
        "stream.batch or size",
    )


def _no_context(device: torch.device) -> UnavailableError:
    return UnavailableError(
        "VIDC-GPU-MEMORY",
        f"{device} has no memory left, not even for what CUDA itself takes in a process",
        "nvidia-smi shows who holds it; end it or use another GPU",
    )


def _lost(device: torch.device, error: RuntimeError) -> UnavailableError:
    reason = str(error).strip().partition("\n")[0]
    return UnavailableError(
        "VIDC-GPU-LOST",
        f"{device} does not answer any more: {reason}",
        "end this process: CUDA takes up a device again only in a new one; nvidia-smi and the "
        "kernel's log (dmesg, Xid) show the cause",
    )
