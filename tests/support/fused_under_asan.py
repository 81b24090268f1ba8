"""Runs the fused operators' kernels, compiled for a CPU with AddressSanitizer, over tensors that it
watches the ends of. For a process that its library was loaded into first.

    LD_PRELOAD=libasan.so python tests/support/fused_under_asan.py kernels.so operators
    LD_PRELOAD=libasan.so python tests/support/fused_under_asan.py kernels.so planted
"""

import sys
from pathlib import Path

import torch
from fused_on_cpu import Kernels
from operators import gelu_arguments
from sanitizer_cases import clips, ring_writes, rows

from vidc.plugins.ops.gelu_quantize import gelu_quantize


def operators(kernels: Kernels) -> None:
    for calls in (rows, ring_writes, clips):
        for operator, taken in calls():
            kernels.operator(operator)(*taken.values())


def planted(kernels: Kernels) -> None:
    """An output that is one element short."""
    taken = gelu_arguments()
    output = torch.empty(taken["x"].numel() - 1, dtype=taken["x"].dtype)
    kernels.raw(*kernels.entry(gelu_quantize), list(taken.values()), [output])


if __name__ == "__main__":
    {"operators": operators, "planted": planted}[sys.argv[2]](Kernels(Path(sys.argv[1]), fence=0))
    print("ran")
