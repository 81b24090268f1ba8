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

MERGES_PADDING = "merges-padding"
"""Last argument of the script for a kernel of ``padded_attention_sm90``."""

_TEXT_TILES = {128: (192, 80)}
"""Numbers of queries and keys of a tile for attention to a text's keys, by head size.

With so few keys, loading the first tile and storing the result take most of the time. Fewer and
larger tiles of queries are then faster: 23 us for 129 keys and 4680 queries of 12 heads, and 28 us
with the tiles for long sequences (H100, November 2026).
"""

_TOOLKIT = "cu13"


def main(dtype: str, head_dim: int, folder: Path, merges_padding: bool) -> None:
    """Writes the cubin, the PTX, a recorded launch and the tile sizes to ``folder``."""
    _enter_quack()
    _require_toolkit()
    kernel = _kernel(dtype, head_dim, merges_padding)
    compiled = _compile(kernel, head_dim, merges_padding)
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


def _with_padding() -> Any:
    """Returns a score modification by which the last key that is read stands for all later ones.

    The kernel reads n of S keys, and adds ``ln(S - n + 1)`` to the logit of the last one.
    """
    import cutlass
    from cutlass import cute

    @cute.jit  # type: ignore[untyped-decorator]
    def modify(
        score: Any,
        batch: Any,
        head: Any,
        q_idx: Any,
        kv_idx: Any,
        seqlen_info: Any,
        aux_tensors: Any,
        aux_scalars: Any,
    ) -> Any:
        distinct = seqlen_info.seqlen_k
        added = cute.math.log(cutlass.Float32(aux_scalars[0] - distinct + 1), fastmath=True)
        is_last = kv_idx == cute.full_like(kv_idx, distinct - 1)
        return score + cute.where(is_last, cute.full_like(score, added), cute.full_like(score, 0.0))

    return modify


def _kernel(dtype: str, head_dim: int, merges_padding: bool) -> Any:
    import cutlass
    from flash_attn.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
    from flash_attn.cute.interface import _tile_size_fwd_sm90

    tuned = _tile_size_fwd_sm90(head_dim, head_dim, is_causal=False, is_local=False)
    tiles = (tuned.m_block_size, tuned.n_block_size)
    if merges_padding:
        tiles = _TEXT_TILES.get(head_dim, tiles)
    return FlashAttentionForwardSm90(
        {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}[dtype],
        head_dim,
        is_causal=False,
        is_local=False,
        pack_gqa=False,
        tile_m=tiles[0],
        tile_n=tiles[1],
        num_stages=2,  # What its own interface passes.
        intra_wg_overlap=tuned.intra_wg_overlap,
        mma_pv_is_rs=tuned.mma_pv_is_rs,
        score_mod=_with_padding() if merges_padding else None,
    )


def _compile(kernel: Any, head_dim: int, merges_padding: bool) -> Any:
    """Compiles the kernel for contiguous ``[B, T, H, D]`` and ``[B, S, H, D]``, only D static."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream, make_ptr
    from flash_attn.cute.utils import AuxData

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
            aux_data=AuxData(scalars=(capacity,)) if merges_padding else AuxData(),
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
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:] == [MERGES_PADDING])
