"""The prebuilt library of 8-bit ring attention, called with tensors, and its emulation."""

import ctypes
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from attention_8bit.emulation import emulate, products
from attention_8bit.ring import Ring8Bit, RingScales

FORMATS = {torch.int8: 0, torch.float8_e4m3fn: 1}
OUTPUT_TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float8_e4m3fn: 2}
TILE = 128
POISON = 0x7F
"""Fills outputs before a launch: not a number in every type that a kernel writes."""


class Arguments(ctypes.Structure):
    """``struct VidcRingAttention``."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("query_scale", ctypes.c_void_p),
        ("key", ctypes.c_void_p),
        ("key_scale", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("value_scale", ctypes.c_void_p),
        ("value_mean", ctypes.c_void_p),
        ("valid_length", ctypes.c_void_p),
        ("output_scale", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("products", ctypes.c_void_p),
        ("batch", ctypes.c_int32),
        ("queries", ctypes.c_int32),
        ("slots", ctypes.c_int32),
        ("value_slots", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("output_type", ctypes.c_int32),
        ("ctas", ctypes.c_int32),
    )


class Attention(Protocol):
    """Attention of 8-bit queries ``[B, T, H, D]`` with their scales over a ring's valid slots."""

    def __call__(
        self,
        query: Tensor,
        query_scale: Tensor,
        ring: Ring8Bit,
        scales: RingScales,
        valid_length: Tensor,
        *,
        output: Tensor | None = None,
        products: Tensor | None = None,
        ctas: int = 0,
    ) -> Tensor: ...


class Library:
    """The kernel. Keeps one zeroed workspace for each size, as the kernel wants it."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.vidc_ring_attention_workspace.restype = ctypes.c_size_t
        self._library.vidc_ring_attention_zeroed.restype = ctypes.c_size_t
        self._library.vidc_ring_attention.argtypes = (ctypes.POINTER(Arguments), ctypes.c_void_p)
        self._workspaces: dict[tuple[int, ...], Tensor] = {}

    def __call__(
        self,
        query: Tensor,
        query_scale: Tensor,
        ring: Ring8Bit,
        scales: RingScales,
        valid_length: Tensor,
        *,
        output: Tensor | None = None,
        products: Tensor | None = None,
        ctas: int = 0,
    ) -> Tensor:
        if output is None:
            output = torch.empty(query.shape, dtype=torch.bfloat16, device=query.device)
            output.view(torch.uint8).fill_(POISON)
        batch, tokens, heads, head_dim = query.shape
        read = (query, query_scale, ring.key, scales.key_scale, ring.value, scales.value_scale)
        read = (*read, scales.value_mean, valid_length)
        if not all(tensor.is_contiguous() for tensor in (*read, output)):
            raise ValueError("a tensor is not contiguous")
        quantized = output.dtype == torch.float8_e4m3fn
        unit_scale = torch.ones(1, device=query.device) if quantized else None
        arguments = Arguments(
            *(tensor.data_ptr() for tensor in read),
            None if unit_scale is None else unit_scale.data_ptr(),
            output.data_ptr(),
            None,
            None if products is None else products.data_ptr(),
            batch,
            tokens,
            ring.key.shape[1],
            ring.value.shape[3],
            heads,
            head_dim,
            FORMATS[query.dtype],
            OUTPUT_TYPES[output.dtype],
            ctas,
        )
        arguments.workspace = self._workspace(arguments, query.device).data_ptr()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = self._library.vidc_ring_attention(ctypes.byref(arguments), stream)
        if error:
            raise RuntimeError(f"vidc_ring_attention: cudaError_t {error}")
        return output

    def _workspace(self, arguments: Arguments, device: torch.device) -> Tensor:
        sizes = ("batch", "queries", "heads", "head_dim", "format", "ctas")
        key = tuple(getattr(arguments, name) for name in sizes)
        if key not in self._workspaces:
            size = self._library.vidc_ring_attention_workspace(ctypes.byref(arguments))
            made = torch.full((size,), POISON, dtype=torch.uint8, device=device)
            made[: self._library.vidc_ring_attention_zeroed(ctypes.byref(arguments))] = 0
            self._workspaces[key] = made
        return self._workspaces[key]


class Emulation:
    """The same by ``emulation.emulate``, on any device: to test what surrounds the kernel."""

    def __call__(
        self,
        query: Tensor,
        query_scale: Tensor,
        ring: Ring8Bit,
        scales: RingScales,
        valid_length: Tensor,
        *,
        output: Tensor | None = None,
        products: Tensor | None = None,
        ctas: int = 0,
    ) -> Tensor:
        found = emulate(query, query_scale, ring, scales, int(valid_length))
        if products is not None:
            dot = first_products(query, ring)
            products[: dot.shape[0], : dot.shape[1]] = dot
        if output is None:
            return found.to(torch.bfloat16)
        return output.copy_(found)


def first_products(query: Tensor, ring: Ring8Bit) -> Tensor:
    """Products that the kernel writes for debugging, at most ``[128, 128]``; in FP8 float32."""
    dot = products(query[:1, :TILE, :1], ring.key[:1, :TILE, :1])[0, 0]
    return dot.to(torch.int32) if query.dtype == torch.int8 else dot
