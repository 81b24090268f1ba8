"""What a bundle takes of a GPU's memory, known before anything is loaded."""

from dataclasses import dataclass

import torch

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.manifest import Manifest
from vidc.runtime.states import shared_states

CONTEXT_BYTES = 700_000_000
"""What CUDA and its libraries take before the first tensor; 0.65 GB on an H200."""
GB = 1e9


@dataclass(frozen=True)
class Need:
    """Device memory of a bundle with one session, in bytes.

    Attributes:
        weights: files of weights, whole.
        session: states and buffers of a session; each further one takes as much again.
        working: what captured work keeps, all sessions together, as the build found it.
    """

    weights: int
    session: int
    working: int

    @property
    def total(self) -> int:
        """All of it, with what CUDA itself takes."""
        return CONTEXT_BYTES + self.weights + self.session + self.working

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.1f} GB (weights {self.weights / GB:.1f}, a session "
            f"{self.session / GB:.1f}, working memory {self.working / GB:.1f}, CUDA "
            f"{CONTEXT_BYTES / GB:.1f})"
        )


def need(manifest: Manifest) -> Need:
    """Adds up what a bundle needs, from its manifest alone."""
    signatures = _signatures(manifest)
    buffers = [spec for found in signatures for spec in (*found.inputs, *found.outputs)]
    return Need(
        weights=sum(manifest.files[entry.path].size for entry in manifest.weights.values()),
        session=sum(spec.nbytes for spec in (*_states(manifest), *buffers)),
        working=manifest.validation.working_bytes,
    )


def require_memory(manifest: Manifest, device: torch.device) -> None:
    """Refuses a GPU with too little free memory, before anything is put there.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY`` says what is needed, what is free and what would fit.
    """
    needed = need(manifest)
    # What captured graphs keep is reserved and unused, but no tensor to come gets it: only what
    # torch gives back is free. The context is there already.
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
    """Signatures of the engines that a session has buffers for."""
    engines = manifest.engines
    return [engines[name].signature for name in manifest.spec.components if name in engines]


def _states(manifest: Manifest) -> list[TensorSpec]:
    return [*shared_states(_signatures(manifest)).values()]
