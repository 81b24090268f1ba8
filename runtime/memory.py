"""GPU memory of a bundle, computed from its manifest before loading."""

from dataclasses import dataclass

import torch

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.manifest import Manifest
from vidc.runtime.states import shared_states

CONTEXT_BYTES = 700_000_000
"""Bytes of the CUDA context and libraries; 0.65 GB on an H200."""
GB = 1e9


@dataclass(frozen=True)
class Need:
    """Device memory of a bundle with one session, in bytes.

    Attributes:
        weights: all weights files.
        session: states and buffers of one session.
        working: workspace of captured graphs, shared by all sessions, as measured by the build.
    """

    weights: int
    session: int
    working: int

    @property
    def total(self) -> int:
        """The sum, including the CUDA context."""
        return CONTEXT_BYTES + self.weights + self.session + self.working

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.1f} GB (weights {self.weights / GB:.1f}, a session "
            f"{self.session / GB:.1f}, working memory {self.working / GB:.1f}, CUDA "
            f"{CONTEXT_BYTES / GB:.1f})"
        )


def need(manifest: Manifest) -> Need:
    """Returns the memory of a bundle, from its manifest alone."""
    signatures = _signatures(manifest)
    buffers = [spec for found in signatures for spec in (*found.inputs, *found.outputs)]
    return Need(
        weights=sum(manifest.files[entry.path].size for entry in manifest.weights.values()),
        session=sum(spec.nbytes for spec in (*_states(manifest), *buffers)),
        working=manifest.validation.working_bytes,
    )


def require_memory(manifest: Manifest, device: torch.device) -> None:
    """Refuses a GPU with too little free memory.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, with the needed and free memory and a size that fits.
    """
    needed = need(manifest)
    # Torch's memory statistics count the pools of captured graphs as unused, but no new tensor can
    # use them: only memory that torch returns to CUDA is free. The context exists already.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    available = free + CONTEXT_BYTES
    if needed.total > available:
        smaller = manifest.spec.smaller(_states(manifest), needed.total, available)
        raise UnavailableError(
            "VIDC-GPU-MEMORY",
            f"{manifest.name} needs {needed} of GPU memory; {device} has "
            f"{available / GB:.1f} of {total / GB:.1f} GB for it",
            f"free the GPU (nvidia-smi shows who uses it) or use one with {needed.total / GB:.0f} "
            + (f"GB; {smaller}" if smaller else "GB"),
        )


def _signatures(manifest: Manifest) -> list[Signature]:
    """Returns the signatures of the engines that a session has buffers for."""
    engines = manifest.engines
    return [engines[name].signature for name in manifest.spec.components if name in engines]


def _states(manifest: Manifest) -> list[TensorSpec]:
    return [*shared_states(_signatures(manifest)).values()]
