"""Launches every operator's kernels once, for a tool that watches what they do to memory.

    compute-sanitizer python tests/support/sanitized.py operators
    compute-sanitizer python tests/support/sanitized.py planted    # writes behind an output

Torch must not keep freed memory (``PYTORCH_NO_CUDA_MEMORY_CACHING=1``), or what lies behind a
tensor is memory too.
"""

import ctypes
import sys
from importlib.resources import files
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import attention_16bit
import portable_attention
import torch
from operators import FP8, on
from operators_8bit import attention_arguments
from plugin_cases import CASES
from sanitizer_cases import clips, ring_writes, rows

from vidc.plugins import loading
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

CUDA = torch.device("cuda", 0)


def library(name: str):
    """A function of the library's C interface, of a pointer to its arguments."""
    path = str(files("vidc.plugins").joinpath(loading.TORCH_LIBRARY))
    function = getattr(ctypes.CDLL(path), name)
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return lambda given: function(given, torch.cuda.current_stream().cuda_stream)


def operators() -> None:
    """Every operator; attention also by the kernel that this GPU would not be given."""
    for operator, arguments in CASES.values():
        operator(*on(CUDA, arguments()).values())
    for calls in (rows, ring_writes, clips):
        for operator, taken in calls():
            operator(*on(CUDA, taken).values())
    portable = portable_attention.attending(library("vidc_ring_attention_portable"))
    for head_dim in (64, 128):
        for of in (FP8, torch.int8):
            taken = on(CUDA, attention_arguments(2, 70, 3, head_dim, 140, 144, 131, of))
            ring_attention_8bit(*taken.values())
            portable(*taken.values())
        for dtype in (torch.bfloat16, torch.float16):
            for valid in (1, 131, 140):
                taken = attention_16bit.arguments(2, 70, 3, head_dim, 140, valid, dtype)
                ring_attention_16bit(*on(CUDA, taken).values())
    torch.cuda.synchronize()


def planted() -> None:
    """Attention whose output has half the bytes that it needs."""
    taken = on(CUDA, attention_16bit.arguments())
    query, half = taken["query"], torch.empty(taken["query"].numel() // 2, device=CUDA).bfloat16()
    tensors = (*taken.values(), half)
    batch, tokens, heads, head_dim = query.shape
    sizes = (batch, tokens, taken["key_cache"].shape[1], heads, head_dim, 0)
    given = attention_16bit.Arguments(*(tensor.data_ptr() for tensor in tensors), *sizes)
    library("vidc_ring_attention_16bit")(ctypes.byref(given))
    torch.cuda.synchronize()


if __name__ == "__main__":
    {"operators": operators, "planted": planted}[sys.argv[1]]()
    print("launched")
