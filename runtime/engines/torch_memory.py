"""PyTorch's CUDA allocator as ONNX Runtime's, so that engines share freed memory."""

import ctypes
import functools
import sys
from collections.abc import Mapping

import torch

_TAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_GIVE_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_KEPT: list[object] = []
"""Callbacks that ONNX Runtime may call until the process ends."""

REFUSED = "p != nullptr"
"""Part of ONNX Runtime's message when the allocator returned no memory."""


@functools.cache
def torch_memory(device: torch.device) -> Mapping[str, str]:
    """Returns CUDA provider options that make ONNX Runtime use PyTorch's allocator.

    ONNX Runtime's own arena, one per session, never shrinks; PyTorch reuses blocks for the next
    engine. The blocks belong to a stream without other work, so no other work gets memory that an
    engine frees while it still runs. Captured graphs must not use these options: nothing else may
    use their memory.
    """
    device = torch.device("cuda", device.index or 0)  # The allocator requires an index.
    stream = torch.cuda.Stream(device)

    def take(size: int) -> int | None:
        try:
            address: int = torch.cuda.caching_allocator_alloc(size, device, stream)
        except torch.OutOfMemoryError:
            return None
        return address

    def give_back(address: int) -> None:
        # A session may outlive the start of interpreter shutdown.
        if not sys.is_finalizing():
            torch.cuda.caching_allocator_delete(address)

    functions = {"gpu_external_alloc": _TAKE(take), "gpu_external_free": _GIVE_BACK(give_back)}
    _KEPT.append(functions)
    addresses = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in functions.items()}
    return {name: str(address) for name, address in addresses.items()}
