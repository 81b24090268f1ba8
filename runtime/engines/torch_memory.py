"""Device memory for ONNX Runtime that is PyTorch's, so that engines share it and give it back."""

import ctypes
import functools
import sys
from collections.abc import Mapping

import torch

_TAKE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_GIVE_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_KEPT: list[object] = []
"""What ONNX Runtime may call for as long as the process lives."""

REFUSED = "p != nullptr"
"""What ONNX Runtime says where there was no memory."""


@functools.cache
def torch_memory(device: torch.device) -> Mapping[str, str]:
    """Options of ONNX Runtime's CUDA provider that have it take memory from PyTorch's allocator.

    An arena of its own keeps all that a run ever took, and each session has one. PyTorch's blocks
    serve whichever engine runs next. They belong to a stream that nothing else is put on: what one
    engine gives back while it runs is given to no other work before that is done. A captured graph
    needs memory that stays its own, so this is not for one.
    """
    device = torch.device("cuda", device.index or 0)  # The allocator takes none without its index.
    stream = torch.cuda.Stream(device)

    def take(size: int) -> int | None:
        try:
            address: int = torch.cuda.caching_allocator_alloc(size, device, stream)
        except torch.OutOfMemoryError:
            return None
        return address

    def give_back(address: int) -> None:
        # A session may end after the interpreter began to.
        if not sys.is_finalizing():
            torch.cuda.caching_allocator_delete(address)

    functions = {"gpu_external_alloc": _TAKE(take), "gpu_external_free": _GIVE_BACK(give_back)}
    _KEPT.append(functions)
    addresses = {name: ctypes.cast(f, ctypes.c_void_p).value for name, f in functions.items()}
    return {name: str(address) for name, address in addresses.items()}
