"""What a bundle takes of a GPU's memory, known before anything is loaded."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import TensorSpec
from vidc.runtime.manifest import Manifest
from vidc.runtime.states import shared_states
from vidc.runtime.stream import StreamSpec

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
        ring_frame: the part of ``session`` that a latent frame of the window takes.
    """

    weights: int
    session: int
    working: int
    ring_frame: int

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


def need(manifest: Manifest, in_stream: Iterable[str]) -> Need:
    """What a bundle needs; ``in_stream`` names the engines that a session has buffers for."""
    signatures = [manifest.engines[name].signature for name in in_stream]
    states = shared_states(signatures).values()
    buffers = [spec for found in signatures for spec in (*found.inputs, *found.outputs)]
    rings = [spec for spec in states if spec.name.startswith("ring.")]
    return Need(
        weights=sum(manifest.files[entry.path].size for entry in manifest.weights.values()),
        session=sum(map(_bytes, (*states, *buffers))),
        working=manifest.validation.working_bytes,
        ring_frame=sum(map(_bytes, rings)) // manifest.stream.window,
    )


def require_memory(manifest: Manifest, in_stream: Iterable[str], device: torch.device) -> None:
    """Refuses a GPU with too little free memory, before anything is put there.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY`` says what is needed, what is free and what would fit.
    """
    needed = need(manifest, in_stream)
    # What captured graphs keep is reserved and unused, but no tensor to come gets it: only what
    # torch gives back is free. The context is there already.
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    available = free + CONTEXT_BYTES
    if needed.total > available:
        raise UnavailableError(
            "VIDC-GPU-MEMORY",
            f"{manifest.name} needs {needed} of GPU memory; {device} has "
            f"{available / GB:.1f} of {total / GB:.1f} GB for it",
            _what_fits(needed, manifest.stream, available),
        )


def _what_fits(needed: Need, stream: StreamSpec, available: int) -> str:
    smallest = stream.sink + stream.block
    for window in range(stream.window - stream.block, smallest - 1, -stream.block):
        total = needed.total - (stream.window - window) * needed.ring_frame
        if total <= available:
            return f"a build with --set stream.window={window} would fit: {total / GB:.1f} GB"
    return (
        f"free the GPU (nvidia-smi shows who uses it) or use one with {needed.total / GB:.0f} GB; "
        "no smaller window would fit, a smaller stream.height and stream.width may"
    )


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.torch_dtype.itemsize
