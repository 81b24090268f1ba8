"""What holds the fused operators' kernels on a CPU sees a fault in any of them."""

from collections.abc import Callable
from dataclasses import dataclass

import held
import pytest
import torch
from fused_on_cpu import Kernels, with_fault
from operators import (
    FP8,
    Ring,
    gate_arguments,
    gelu_arguments,
    norm_arguments,
    qkv_arguments,
    renoise_arguments,
)
from operators_8bit import arguments as to_8bit_arguments

from vidc.plugins.gate_residual import gate_residual
from vidc.plugins.gelu_quantize import gelu_quantize
from vidc.plugins.norm_modulate_quantize import norm_modulate_quantize
from vidc.plugins.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.renoise import renoise

CPU = torch.device("cpu")
RING = Ring(batch=2, tokens=70, heads=3, head_dim=128, window=160, sink=40, position=130)


def gate(kernels):
    held.gate(gate_arguments(2, 2, 3, 264), CPU, kernels.operator(gate_residual))


def norm(kernels):
    operator = kernels.operator(norm_modulate_quantize, backwards=True)
    held.norm(norm_arguments(2, 2, 3, 1528), CPU, operator)


def gelu(kernels):
    taken = gelu_arguments(1, 8, 64, output=FP8, centered=True)
    held.gelu(taken, CPU, kernels.operator(gelu_quantize))


def renoised(kernels):
    held.renoised(renoise_arguments((1, 3, 3, 5, 7)), CPU, kernels.operator(renoise))


def ring(kernels):
    operator = kernels.operator(qk_norm_rope_ring_write, backwards=True)
    held.qkv(RING, qkv_arguments(RING, torch.bfloat16, 1), CPU, operator)


def static(kernels):
    operator = kernels.operator(held.TO_8BIT[False])
    held.to_8bit(RING, False, to_8bit_arguments(RING, False), CPU, operator)


def dynamic(kernels):
    operator = kernels.operator(held.TO_8BIT[True])
    held.to_8bit(RING, True, to_8bit_arguments(RING, True), CPU, operator)


UNITS = {
    gate: "gate_residual.cu", norm: "norm_modulate_quantize.cu", gelu: "gelu_quantize.cu",
    renoised: "renoise.cu", ring: "qk_norm_rope_ring_write.cu",
    static: "qk_norm_rope_ring_write_8bit.cu", dynamic: "qk_norm_rope_ring_write_8bit.cu",
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


BARRIER = "  __syncthreads();\n  float total = partial[0];\n"
FAULTS = [
    Fault(gate, "sm75_gate_residual.cuh", "(frame - batch * given.frames)", "0"),
    Fault(gate, "sm75_gate_residual.cuh", "given.quads) return;", "given.quads - 1) return;"),
    Fault(norm, "sm75_norm_modulate_quantize.cuh", "shift[i] * inverse", "scale[i] * inverse"),
    Fault(norm, "sm75_sum.cuh", BARRIER, "  float total = partial[0];\n"),
    Fault(gelu, "sm75_gelu_quantize.cuh", " - mean[i]", ""),
    Fault(renoised, "sm75_renoise.cuh", "int64_t i = at;", "int64_t i = at + 1;"),
    Fault(ring, "sm75_ring.cuh", "(at - ring.sink) %", "(at - ring.sink + 1) %"),
    Fault(ring, "sm75_qk_norm_rope.cuh", "rsqrtf(sum.y /", "rsqrtf(sum.x /"),
    Fault(static, "sm75_qk_norm_rope_ring_write_8bit.cuh", "given.key_scale[head]",
          "given.key_scale[0]"),
    Fault(static, "sm75_value_transpose.cuh", "position / 2 % 2 * 8", "position / 2 % 2 * 4"),
    Fault(static, "sm75_value_transpose.cuh", "slot % 8 / 2 * 4", "slot % 8 / 2 * 2"),
    Fault(static, "sm75_value_transpose.cuh",
          "(tokens + 3 * 2 * (kTileSlots - 1)) / kTileSlots) + 1", "tokens / kTileSlots)"),
    Fault(dynamic, "sm75_scale.cuh", "offset = lanes / 2", "offset = lanes / 4"),
    Fault(dynamic, "sm75_value_transpose.cuh", "given.scale[of_head * given.ring.slots + slot]",
          "given.scale[slot]"),
]  # fmt: skip


@pytest.mark.parametrize("hold", UNITS)
def test_without_a_fault_nothing_is_wrong(built_for_cpu, hold):
    hold(Kernels(built_for_cpu))


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_seen(built_for_cpu, tmp_path_factory, fault):
    folder = tmp_path_factory.mktemp("faulty") / f"fault{FAULTS.index(fault)}"
    built = with_fault(built_for_cpu, folder, UNITS[fault.hold], fault.file, fault.old, fault.new)
    with pytest.raises(AssertionError):
        fault.hold(Kernels(built))
