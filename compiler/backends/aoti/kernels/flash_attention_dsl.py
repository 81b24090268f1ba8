"""Script that compiles FlashAttention-4's forward kernel for sm_90, run by ``flash_attention``.

It is a process of its own because the CuTe DSL reads its settings from the environment on import
and loads 200 MB of compiler.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

from vidc.compiler.backends.aoti.kernels.launch import record_launch
from vidc.compiler.backends.aoti.kernels.ptx import parse_entry

CUBIN, PTX, LAUNCH, TILES = "kernel.cubin", "kernel.ptx", "launch.json", "tiles.json"

BATCH, QUERIES, CAPACITY, HEADS, SCALE = 2, 1000, 3000, 5, 0.25
"""Sizes of the recorded launch."""
ADDRESSES = {
    name: (index + 1) << 32
    for index, name in enumerate(("query", "key", "value", "lengths", "output", "logsumexp"))
}
"""Tensor addresses of the recorded launch, which are not dereferenced."""

_TOOLKIT = "cu13"


def main(dtype: str, head_dim: int, folder: Path) -> None:
    """Writes the cubin, the PTX, a recorded launch and the tile sizes to ``folder``."""
    _enter_quack()
    _require_toolkit()
    kernel = _kernel(dtype, head_dim)
    compiled = _compile(kernel, head_dim)
    ptx: str = compiled.artifacts.PTX
    (folder / CUBIN).write_bytes(compiled.artifacts.CUBIN)
    (folder / PTX).write_text(ptx)
    sizes = map(ctypes.c_int32, (BATCH, QUERIES, CAPACITY, HEADS))
    pointers = map(ctypes.c_void_p, ADDRESSES.values())
    arguments = (*pointers, *sizes, ctypes.c_float(SCALE), ctypes.c_void_p())
    launch = record_launch(compiled, arguments, parse_entry(ptx).parameters)
    (folder / LAUNCH).write_text(launch.to_json())
    (folder / TILES).write_text(f"[{kernel.tile_m}, {kernel.tile_n}]")


def _enter_quack() -> None:
    """Imports package ``quack`` without its kernels, which need triton without declaring it."""
    spec = importlib.util.find_spec("quack")
    if spec is None:
        raise ModuleNotFoundError("there is no package quack", name="quack")
    sys.modules["quack"] = importlib.util.module_from_spec(spec)
    importlib.import_module("quack.dsl")


def _require_toolkit() -> None:
    """Rejects another CUDA's compiler, which the DSL chooses for an older driver."""
    from cutlass._mlir._mlir_libs import _cutlass_ir

    if f".{_TOOLKIT}." not in Path(_cutlass_ir.__file__).name:
        raise RuntimeError(
            f"the CuTe DSL chose {Path(_cutlass_ir.__file__).name}, not {_TOOLKIT}: "
            "the GPU's driver is for an older CUDA"
        )


def _kernel(dtype: str, head_dim: int) -> Any:
    import cutlass
    from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
    from flash_attn.cute.interface import _tile_size_fwd_sm90

    tuned = _tile_size_fwd_sm90(head_dim, head_dim, is_causal=False, is_local=False)
    return FlashAttentionForwardSm90(
        {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[dtype],
        head_dim,
        is_causal=False,
        is_local=False,
        pack_gqa=False,
        tile_m=tuned.m_block_size,
        tile_n=tuned.n_block_size,
        num_stages=2,  # What its own interface passes.
        intra_wg_overlap=tuned.intra_wg_overlap,
        mma_pv_is_rs=tuned.mma_pv_is_rs,
    )


def _compile(kernel: Any, head_dim: int) -> Any:
    """Compiles the kernel for contiguous ``[B, T, H, D]`` and ``[B, S, H, D]``, only D static."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    def attend(
        query: cute.Pointer,
        key: cute.Pointer,
        value: cute.Pointer,
        lengths: cute.Pointer,
        output: cute.Pointer,
        logsumexp: cute.Pointer,
        batch: cutlass.Int32,
        queries: cutlass.Int32,
        capacity: cutlass.Int32,
        heads: cutlass.Int32,
        scale: cutlass.Float32,
        stream: Any,
    ) -> None:
        row = cutlass.Int64(heads) * head_dim

        def tensor(pointer: Any, rows: Any) -> Any:
            strides = (cutlass.Int64(rows) * row, row, head_dim, 1)
            layout = cute.make_layout((batch, rows, heads, head_dim), stride=strides)
            return cute.make_tensor(pointer, layout)

        strides = (cutlass.Int64(heads) * queries, cutlass.Int64(queries), 1)
        kernel(
            tensor(query, queries),
            tensor(key, capacity),
            tensor(value, capacity),
            tensor(output, queries),
            cute.make_tensor(logsumexp, cute.make_layout((batch, heads, queries), stride=strides)),
            scale,
            mSeqUsedK=cute.make_tensor(lengths, cute.make_layout((batch,), stride=(1,))),
            stream=stream,
        )

    def pointer(dtype: Any, alignment: int) -> Any:
        return make_ptr(dtype, 0, cute.AddressSpace.gmem, assumed_align=alignment)

    data, sizes = pointer(kernel.dtype, 16), (BATCH, QUERIES, CAPACITY, HEADS)
    return cute.compile(
        cute.jit(attend),
        data,
        data,
        data,
        pointer(cutlass.Int32, 4),
        data,
        pointer(cutlass.Float32, 4),
        *map(cutlass.Int32, sizes),
        cutlass.Float32(SCALE),
        make_fake_stream(),
        options="--gpu-arch=sm_90a --keep-cubin --keep-ptx",
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
