"""The fused operators that engines and programs call, and a test of their kernels on a GPU."""

from functools import cache, partial

import torch

from vidc.plugins import loading
from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.temporal_attention import temporal_attention

PLAIN = (
    "gelu_quantize", "group_norm_silu", "norm_silu_winograd", "qk_norm_rope_ring_write",
    "sampler_step", "temporal_attention",
)  # fmt: skip
RINGS_8BIT = ("qk_norm_rope_ring_write_static", "ring_attention_8bit")
"""Operators of engines with 8-bit rings."""
OPERATORS = tuple(sorted((*PLAIN, *RINGS_8BIT)))
"""Names of all these operators, sorted."""


@cache
def kernel_error(
    device: torch.device, operators: tuple[str, ...] = PLAIN
) -> UnavailableError | None:
    """Returns the error if kernels do not run on a device, else None.

    A library may not be compiled for this GPU. So each kernel of ``PLAIN`` runs on a few KB of
    data, once a process; those of ``RINGS_8BIT`` run too if ``operators`` has one of them. The
    error is ``VIDC-KERNEL-LIBRARY``, ``VIDC-KERNEL-ABI`` or ``VIDC-KERNEL-GPU``.

    Args:
        device: a GPU; on a CPU the references run and no library is needed.
        operators: names of the operators that are called.

    Raises:
        RuntimeError: the device fails for another reason, such as full memory.
    """
    if device.type == "cpu":
        return None
    if (error := loading.torch_library_error()) is not None:
        return error
    try:
        _run_plain(device)
        if not set(operators).isdisjoint(RINGS_8BIT):
            _run_rings_8bit(device)
        torch.cuda.synchronize(device)
    except RuntimeError as failure:
        if "[VIDC-KERNEL-GPU]" not in str(failure):
            raise
        return UnavailableError(
            "VIDC-KERNEL-GPU",
            f"{loading.TORCH_LIBRARY} has no kernel for {torch.cuda.get_device_name(device)}",
            "build the library for this GPU: VIDC_CUDA=1 pip install --no-build-isolation "
            "-C cmake.define.VIDC_ARCHITECTURES=<compute capability> .",
        )
    return None


def _run_plain(device: torch.device) -> None:
    heads, head_dim = 1, 64
    width = heads * head_dim

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    gelu_quantize(zeros(1, 1, width), "bfloat16")
    pixel, each = zeros(1, 1, width), zeros(width)
    group_norm_silu(pixel, None, each, each, 1, 1e-6, True)
    frames, weight = zeros(1, 2, 1, 1, 32, dtype=torch.float16), zeros(32, dtype=torch.float16)
    norm_silu_winograd(frames, *[None] * 7, weight, frames, 2, False)
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
    float32 = partial(zeros, dtype=torch.float32)
    clip = (1, 1, 4, 1, 1)
    sampler_step(
        float32(*clip), None, float32(1), float32(1, 5), zeros(2, dtype=torch.int64),
        float32(*clip), float32(1, 1, 8, 1, 1), float32(1),
    )  # fmt: skip
    temporal_attention(*[zeros(1, 1, 1, heads, head_dim)] * 3)


def _run_rings_8bit(device: torch.device) -> None:
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
    scale, channel_scale = zeros(heads) + 1, zeros(heads, head_dim) + 1
    weight = zeros(width, dtype=torch.bfloat16)
    angles = zeros(1, head_dim // 2)
    query, query_scale = qk_norm_rope_ring_write_static(
        zeros(1, 1, 3 * width, dtype=torch.bfloat16), weight, weight, angles, angles,
        zeros(1, dtype=torch.int64), keys, values, scale, scale, None, 0, 1e-6, True, True,
    )  # fmt: skip
    ring_attention_8bit(
        query, query_scale, keys, values, scale, channel_scale, channel_scale * 0,
        zeros(1, dtype=torch.int64) + 1, "bfloat16",
    )  # fmt: skip
