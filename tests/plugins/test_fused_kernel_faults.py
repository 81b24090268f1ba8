"""The CPU tests of the fused kernels detect a fault planted in any of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import held
import pytest
import torch
from fused_on_cpu import Kernels, with_fault
from operators import (
    FP8,
    Ring,
    frame_arguments,
    gelu_arguments,
    group_norm_arguments,
    qkv_arguments,
    sampler_arguments,
)
from operators_8bit import arguments as to_8bit_arguments

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.temporal_attention import temporal_attention

CPU = torch.device("cpu")
RING = Ring(batch=2, tokens=70, heads=3, head_dim=128, window=160, sink=40, position=130)


def gelu(kernels):
    taken = gelu_arguments(1, 8, 64, output=FP8, centered=True)
    held.gelu(taken, CPU, kernels.operator(gelu_quantize))


def ring(kernels):
    operator = kernels.operator(qk_norm_rope_ring_write, backwards=True)
    held.qkv(RING, qkv_arguments(RING, torch.bfloat16, 1), CPU, operator)


def static(kernels):
    operator = kernels.operator(qk_norm_rope_ring_write_static)
    held.to_8bit(RING, to_8bit_arguments(RING), CPU, operator)


def padded(kernels):
    operator, ring = kernels.operator(qk_norm_rope_ring_write_static), replace(RING, window=150)
    held.to_8bit(ring, to_8bit_arguments(ring), CPU, operator)


def group_norm(kernels):
    taken = group_norm_arguments(2, 77, 64, 8)
    held.group_norm(taken, CPU, kernels.operator(group_norm_silu))


def frames(kernels):
    held.frames(frame_arguments(2, 25), CPU, kernels.operator(temporal_attention))


def sampler(kernels):
    taken = sampler_arguments(frames=2, size=(4, 20, 30), fresh=True)
    held.sampler(taken, CPU, kernels.operator(sampler_step))


UNITS = {
    gelu: "gelu_quantize.cu", ring: "qk_norm_rope_ring_write.cu",
    static: "qk_norm_rope_ring_write_8bit.cu", padded: "qk_norm_rope_ring_write_8bit.cu",
    group_norm: "group_norm_silu.cu", frames: "temporal_attention.cu",
    sampler: "sampler_step.cu",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Other text in a kernel's source."""

    hold: Callable[[Kernels], None]
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}: {self.new.strip() or self.old.strip()}"


BARRIER = "  __syncthreads();\n  float2 total = partial[0];\n"
FAULTS = [
    Fault(gelu, "sm75_gelu_quantize.cuh", "given.rows) return;", "given.rows - 1) return;"),
    Fault(gelu, "sm75_gelu_quantize.cuh", " - mean[i]", ""),
    Fault(ring, "sm75_sum.cuh", BARRIER, "  float2 total = partial[0];\n"),
    Fault(ring, "sm75_ring.cuh", "(at - ring.sink) %", "(at - ring.sink + 1) %"),
    Fault(ring, "sm75_qk_norm_rope.cuh", "rsqrtf(sum.y /", "rsqrtf(sum.x /"),
    Fault(static, "sm75_qk_norm_rope_ring_write_8bit.cuh", "given.key_scale[head]",
          "given.key_scale[0]"),
    Fault(static, "sm75_value_transpose.cuh", "position / 2 % 2 * 8", "position / 2 % 2 * 4"),
    Fault(static, "sm75_value_transpose.cuh", "slot % 8 / 2 * 4", "slot % 8 / 2 * 2"),
    Fault(static, "sm75_value_transpose.cuh",
          "(tokens + 3 * 2 * (kTileSlots - 1)) / kTileSlots) + 1", "tokens / kTileSlots)"),
    Fault(padded, "sm75_value_transpose.cuh", "given.value_slots +", "given.ring.slots +"),
    Fault(static, "sm75_scale.cuh", "offset = lanes / 2", "offset = lanes / 4"),
    Fault(static, "sm75_value_transpose.cuh", "given.scale[head]", "given.scale[0]"),
    Fault(group_norm, "sm75_group_norm_silu.cuh", "  __syncthreads();\n  const int width",
          "  const int width"),
    Fault(group_norm, "sm75_group_norm_silu.cuh", "(shift[j] - of_group.x)", "(-of_group.x)"),
    Fault(group_norm, "sm75_group_norm_silu.cuh", "end = given.pixels;", "end = given.pixels - 1;"),
    Fault(frames, "sm75_temporal_attention.cuh", "a.frames - 2 * q)", "a.frames + 1 - 2 * q)"),
    Fault(frames, "sm75_temporal_attention.cuh", "of_frame[3], 0x7632", "of_frame[3], 0x5410"),
    Fault(frames, "sm75_temporal_attention.cuh", "i % 2 + i / 2 * 8", "i"),
    Fault(sampler, "sm75_sampler_step.cuh", "__ldg(given.guidance + frame)",
          "__ldg(given.guidance)"),
    Fault(sampler, "sm75_sampler_step.cuh", "blocks - 1) return;", "blocks) return;"),
    Fault(sampler, "sm75_sampler_step.cuh", "given.noise + next *", "given.noise + step *"),
]  # fmt: skip


@pytest.mark.parametrize("hold", UNITS)
def test_unchanged_kernels_pass(built_for_cpu, hold):
    hold(Kernels(built_for_cpu))


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_planted_fault_is_detected(built_for_cpu, tmp_path_factory, fault):
    folder = tmp_path_factory.mktemp("faulty") / f"fault{FAULTS.index(fault)}"
    built = with_fault(built_for_cpu, folder, UNITS[fault.hold], fault.file, fault.old, fault.new)
    with pytest.raises(AssertionError):
        fault.hold(Kernels(built))
