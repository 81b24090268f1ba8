"""The fused operators that engines call, and whether their library of kernels serves a GPU."""

from functools import cache

import torch

from vidc.plugins import kernel_library
from vidc.plugins.errors import UnavailableError
from vidc.plugins.gelu_quantize import gelu_quantize
from vidc.plugins.qk_norm_rope_ring_write import qk_norm_rope_ring_write

OPERATORS = ("gelu_quantize", "qk_norm_rope_ring_write")
"""Their names, sorted; on a CPU they are their references."""


@cache
def fault(device: torch.device) -> UnavailableError | None:
    """What keeps the library's kernels from running on a device, None if they run.

    Tries each of them on a few KB there, once a process: a library need not have been compiled
    for this GPU. The error is ``VIDC-KERNEL-LIBRARY``, ``VIDC-KERNEL-ABI`` or ``VIDC-KERNEL-GPU``.

    Args:
        device: a GPU; a CPU needs no library.

    Raises:
        RuntimeError: the device fails otherwise, for instance because its memory is full.
    """
    if device.type == "cpu":
        return None
    if (absent := kernel_library.fault()) is not None:
        return absent
    try:
        _try_all(device)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        if "[VIDC-KERNEL-GPU]" not in str(error):
            raise
        return UnavailableError(
            "VIDC-KERNEL-GPU",
            f"{kernel_library.NAME} has no kernel for {torch.cuda.get_device_name(device)}",
            "build the library for this GPU: VIDC_CUDA=1 pip install --no-build-isolation "
            "-C cmake.define.VIDC_ARCHITECTURES=<compute capability> .",
        )
    return None


def _try_all(device: torch.device) -> None:
    heads, head_dim = 1, 64
    width = heads * head_dim

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    gelu_quantize(zeros(1, 1, width), "bfloat16")
    qk_norm_rope_ring_write(
        zeros(1, 1, 3 * width),
        zeros(width),
        zeros(width),
        zeros(1, head_dim // 2, dtype=torch.float32),
        zeros(1, head_dim // 2, dtype=torch.float32),
        zeros(1, dtype=torch.int64),
        zeros(1, 2, heads, head_dim),
        zeros(1, 2, heads, head_dim),
        0,
        1e-6,
    )
