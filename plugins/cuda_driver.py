"""Kernels of a cubin, launched on torch's streams through the CUDA driver.

The calls use ctypes because a tensor map must be aligned to 64 bytes, and NVIDIA's Python bindings
align theirs to 16 (cuda-bindings 13.5).
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from vidc.plugins.errors import UnavailableError

_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_TENSOR_MAP_BYTES = 128
_TENSOR_MAP_ALIGNMENT = 64
_INTERLEAVE_NONE = 0
_SWIZZLE_128_BYTES = 3
_L2_PROMOTION_128_BYTES = 2
_FILL_ZEROS = 0
_ELEMENT_TYPES = {torch.float16: 6, torch.bfloat16: 9}
"""CUtensorMapDataType by dtype."""


class Kernel:
    """A kernel of a cubin, loaded on one device for the life of the process.

    Args:
        cubin: the file's bytes.
        symbol: name of the kernel in the cubin.
        shared_bytes: dynamic shared memory of a thread block.
        device: index of the CUDA device.

    Raises:
        UnavailableError: ``VIDC-KERNEL-DRIVER``.
    """

    def __init__(self, cubin: bytes, symbol: str, shared_bytes: int, device: int) -> None:
        library, self._handle = ctypes.c_void_p(), ctypes.c_void_p()
        function = ctypes.c_void_p()
        self._device = device
        self._shared_bytes = shared_bytes
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # Makes the context of the device current.
            call("cuLibraryLoadData", ctypes.byref(library), cubin, None, None, 0, None, None, 0)
            call("cuLibraryGetKernel", ctypes.byref(self._handle), library, symbol.encode())
            call("cuKernelSetAttribute", _SHARED_BYTES, shared_bytes, self._handle, device)
            # Puts the code on the device now: the first launch may be captured in a graph.
            call("cuKernelGetFunction", ctypes.byref(function), self._handle)
            call("cuFuncLoad", function)

    def launch(self, grid: tuple[int, int, int], threads: int, parameters: Sequence[int]) -> None:
        """Enqueues the kernel on torch's current stream of its device.

        Args:
            grid: thread blocks.
            threads: threads of a block.
            parameters: addresses of the parameters; their values are copied before this returns.
        """
        addresses = (ctypes.c_void_p * len(parameters))(*parameters)
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            call(
                "cuLaunchKernel", self._handle, *grid, threads, 1, 1, self._shared_bytes, stream,
                addresses, None,
            )  # fmt: skip


class TensorMap:
    """A tensor map (``CUtensorMap``, 128 bytes) for the copy engine of sm_90 and newer.

    Rows of the box lie in shared memory swizzled by 128 bytes. Elements outside the tensor read as
    zeros and are not written.

    Args:
        address: address of the tensor, aligned to 16 bytes.
        dtype: bfloat16 or float16.
        sizes: elements along each dimension, the innermost first.
        strides: bytes from one element to the next along each dimension but the innermost.
        box: elements of one copy along each dimension.
    """

    def __init__(
        self,
        address: int,
        dtype: torch.dtype,
        sizes: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
    ) -> None:
        rank = len(sizes)
        self._memory = (ctypes.c_char * (_TENSOR_MAP_BYTES + _TENSOR_MAP_ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._memory) // _TENSOR_MAP_ALIGNMENT)
        self.address *= _TENSOR_MAP_ALIGNMENT
        call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(self.address),
            _ELEMENT_TYPES[dtype],
            rank,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*sizes),
            (ctypes.c_uint64 * (rank - 1))(*strides),
            (ctypes.c_uint32 * rank)(*box),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            _INTERLEAVE_NONE,
            _SWIZZLE_128_BYTES,
            _L2_PROMOTION_128_BYTES,
            _FILL_ZEROS,
        )


def driver_version() -> tuple[int, int] | None:
    """Returns the newest CUDA version of the driver, such as (13, 0); None without a driver."""
    version = ctypes.c_int()
    try:
        call("cuDriverGetVersion", ctypes.byref(version))
    except UnavailableError:
        return None
    return version.value // 1000, version.value % 1000 // 10


def call(function: str, *arguments: object) -> None:
    """Calls a driver function that returns a CUresult.

    Raises:
        UnavailableError: ``VIDC-KERNEL-DRIVER``, there is no driver, it has no such function, or
            the call failed.
    """
    try:
        result = getattr(_driver(), function)(*arguments)
    except AttributeError as error:
        raise UnavailableError(
            "VIDC-KERNEL-DRIVER",
            f"the CUDA driver has no {function}",
            "update the driver of the GPU to one for CUDA 13",
        ) from error
    if result:
        raise UnavailableError(
            "VIDC-KERNEL-DRIVER",
            f"{function} of the CUDA driver failed: {_error_name(result)}",
            "check the GPU and its driver with nvidia-smi and `vidc doctor`",
        )


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise UnavailableError(
            "VIDC-KERNEL-DRIVER",
            f"the CUDA driver cannot be loaded: {error}",
            "use a machine with an NVIDIA GPU and its driver",
        ) from error


def _error_name(result: int) -> str:
    name = ctypes.c_char_p()
    if _driver().cuGetErrorName(result, ctypes.byref(name)) or name.value is None:
        return f"error {result}"
    return name.value.decode()
