"""Runs the fused operators' kernels, compiled for a CPU with AddressSanitizer, over tensors that it
watches the ends of. For a process that its library was loaded into first.

    LD_PRELOAD=libasan.so python tests/support/fused_under_asan.py kernels.so operators
    LD_PRELOAD=libasan.so python tests/support/fused_under_asan.py kernels.so planted
"""

import sys
from pathlib import Path

import torch
from fused_on_cpu import Kernels
from operators import (
    FLOATS,
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
from vidc.plugins.qk_norm_rope_ring_write_8bit import (
    qk_norm_rope_ring_write_dynamic,
    qk_norm_rope_ring_write_static,
)
from vidc.plugins.renoise import renoise

RINGS = (
    Ring(batch=1, tokens=5, heads=3, head_dim=32, window=16, sink=3, position=10),
    Ring(batch=2, tokens=21, heads=3, head_dim=64, window=48, sink=7, position=40),
    Ring(batch=1, tokens=70, heads=2, head_dim=128, window=160, sink=40, position=130),
    Ring(batch=1, tokens=9, heads=12, head_dim=128, window=16, sink=0, position=2**33),
)


def operators(kernels: Kernels) -> None:
    """Every operator, whose tensors end within a warp, a tile and a vector too."""
    for dtype in FLOATS:
        for width in (8, 24, 264, 1528, 1536):
            kernels.operator(gate_residual)(
                *gate_arguments(2, 3, 3, width, (dtype, dtype)).values()
            )
            for output in (*FLOATS, FP8):
                norm = norm_arguments(2, 3, 3, width, dtype, output)
                kernels.operator(norm_modulate_quantize)(*norm.values())
                gelu = gelu_arguments(1, 7, width, dtype, output, centred=output is FP8)
                kernels.operator(gelu_quantize)(*gelu.values())
        for ring in RINGS:
            kernels.operator(qk_norm_rope_ring_write)(*qkv_arguments(ring, dtype, 1).values())
    for size in range(1, 10):
        kernels.operator(renoise)(*renoise_arguments((1, 1, 1, 1, size)).values())
    for overload in (qk_norm_rope_ring_write_static, qk_norm_rope_ring_write_dynamic):
        dynamic = overload is qk_norm_rope_ring_write_dynamic
        for ring in RINGS:
            for to in (FP8, torch.int8):
                for transposed in (False, True):
                    taken = to_8bit_arguments(
                        ring, dynamic, to=to, transposed=transposed, quantized=transposed
                    )
                    kernels.operator(overload)(*taken.values())


def planted(kernels: Kernels) -> None:
    """An output that is one element short."""
    taken = gate_arguments()
    output = torch.empty(taken["x"].numel() - 1)
    kernels.raw(*kernels.entry(gate_residual), list(taken.values()), [output])


if __name__ == "__main__":
    {"operators": operators, "planted": planted}[sys.argv[2]](Kernels(Path(sys.argv[1]), fence=0))
    print("ran")
