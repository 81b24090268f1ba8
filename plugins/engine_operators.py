"""The fused operators that engines call, and whether their library of kernels serves a GPU."""

from functools import cache

import torch

from vidc.plugins import kernel_library
from vidc.plugins.errors import UnavailableError
from vidc.plugins.gelu_quantize import gelu_quantize
from vidc.plugins.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ring_attention_8bit import ring_attention_8bit

PLAIN = ("gelu_quantize", "qk_norm_rope_ring_write")
RINGS_8BIT = ("qk_norm_rope_ring_write_static", "ring_attention_8bit")
"""Of engines whose rings are in 8 bits."""
OPERATORS = (*PLAIN, *RINGS_8BIT)
"""Their names, sorted; on a CPU they are their references."""


@cache
def fault(device: torch.device, operators: tuple[str, ...] = PLAIN) -> UnavailableError | None:
    """What keeps the library's kernels from running on a device, None if they run.

    Tries each of ``PLAIN`` on a few KB there, and those of ``RINGS_8BIT`` where one of them is
    wanted, once a process: a library need not have been compiled for this GPU. The error is
    ``VIDC-KERNEL-LIBRARY``, ``VIDC-KERNEL-ABI`` or ``VIDC-KERNEL-GPU``.

    Args:
        device: a GPU; a CPU needs no library.
        operators: names of those that are wanted.

    Raises:
        RuntimeError: the device fails otherwise, for instance because its memory is full.
    """
    if device.type == "cpu":
        return None
    if (absent := kernel_library.fault()) is not None:
        return absent
    try:
        _try_all(device)
        if not set(operators).isdisjoint(RINGS_8BIT):
            _try_rings_8bit(device)
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


def _try_rings_8bit(device: torch.device) -> None:
    heads, head_dim, slots = 1, 64, 16
    width, fp8 = heads * head_dim, torch.float8_e4m3fn

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.uint8 if dtype is fp8 else dtype, device=device).view(
            dtype
        )

    keys, values = (
        zeros(1, slots, heads, head_dim, dtype=fp8),
        zeros(1, heads, head_dim, slots, dtype=fp8),
    )
    scale, by_channel = zeros(heads) + 1, zeros(heads, head_dim) + 1
    weight = zeros(width, dtype=torch.bfloat16)
    angles = zeros(1, head_dim // 2)
    query, query_scale = qk_norm_rope_ring_write_static(
        zeros(1, 1, 3 * width, dtype=torch.bfloat16), weight, weight, angles, angles,
        zeros(1, dtype=torch.int64), keys, values, scale, scale, None, 0, 1e-6, True, True,
    )  # fmt: skip
    ring_attention_8bit(
        query, query_scale, keys, values, scale, by_channel, by_channel * 0,
        zeros(1, dtype=torch.int64) + 1, "bfloat16",
    )  # fmt: skip
