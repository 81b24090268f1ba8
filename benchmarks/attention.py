"""Times ring attention beside PyTorch's, over LongLive's shapes and ten of short sequences.

    python benchmarks/attention.py KERNELS > benchmarks/results/attention-h200.json
    python benchmarks/attention.py --small --samples 6    # a dry run, also without a GPU

KERNELS is the folder of kernels that a build writes. Columns of the result:

- ``vidc``: the operator as engines call it, FlashAttention-4's kernel.
- ``whole tiles``: the same kernel, without halves of keys.
- ``portable``: the kernel for any GPU, of ``libvidc_torch.so``.
- ``fp8`` and ``int8``: ``ring_attention_8bit`` over the same numbers, quantized before the timing.
- All others: backends of scaled_dot_product_attention, given exactly the valid keys.

The ten short shapes are those of a public baseline on an L4: head size 64, float16, one of tokens,
batch and heads varied at a time.

Without a GPU, or where one has no kernel for a shape, its line says so in ``missing``.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from attention_8bit.calibration import calibrate
from attention_8bit.ring import quantize_queries, quantize_ring
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from turns import Arguments, Form, argument_sets, attention_options, rates, sampled

from vidc.compiler.bench.clock import Clock, copy_gbps, matmul_tflops
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.verdict import judge
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.flash_attention import flash_attention
from vidc.plugins.ops.ring import ring_attention_reference
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

WHOLE_TILES = "vidc.plugins.ops.flash_attention.split_from"
FP8 = torch.float8_e4m3fn
PRODUCT = 8192
"""Rows and columns of the FP8 matmul whose rate 8-bit attention is compared with."""
QUERIES_AT_ONCE = 512
"""Number of queries of a part of the float32 attention, the reference of errors."""


@dataclass(frozen=True)
class Shape:
    """``tokens`` queries against the first ``valid`` of ``slots`` keys and values."""

    tokens: int
    slots: int
    valid: int
    heads: int = 12
    head_dim: int = 128
    batch: int = 1
    dtype: str = "bfloat16"

    @property
    def operations(self) -> int:
        """Multiplications and additions of the two products."""
        return 4 * self.batch * self.heads * self.tokens * self.valid * self.head_dim

    @property
    def bytes(self) -> int:
        """Bytes of queries, valid keys and values, and outputs, once each, in 16 bits."""
        return 4 * self.batch * self.heads * (self.tokens + self.valid) * self.head_dim

    @property
    def bytes_8bit(self) -> int:
        """The same with outputs alone in 16 bits, and a scale for each query."""
        rows = self.batch * self.heads
        return rows * ((3 * self.tokens + 2 * self.valid) * self.head_dim + 4 * self.tokens)

    def draw(self, device: torch.device) -> Arguments:
        """Queries, keys, values and the valid length, for the operator."""

        def normal(rows: int) -> Tensor:
            size = (self.batch, rows, self.heads, self.head_dim)
            return torch.randn(size, device=device).to(getattr(torch, self.dtype))

        length = torch.tensor([self.valid], device=device)
        return normal(self.tokens), normal(self.slots), normal(self.slots), length


def short(tokens: int = 512, batch: int = 32, heads: int = 8) -> Shape:
    """Shape of the public baseline."""
    return Shape(tokens, tokens, tokens, heads, 64, batch, "float16")


LONGLIVE = [
    *(Shape(4680, 18720, valid) for valid in (18720, 14040, 9360, 4680)),
    *(Shape(tokens, 18720, 18720) for tokens in (14040, 18720)),
]
SHORT = [
    short(),
    *(short(tokens=tokens) for tokens in (128, 256, 1024, 2048)),
    *(short(batch=batch) for batch in (8, 16, 64)),
    *(short(heads=heads) for heads in (4, 16)),
]
SMALL = [Shape(24, 96, 60, 2, 64), short(16, 2, 2)]


def by_backend(backend: SDPBackend, valid: int, query: Tensor, key: Tensor, value: Tensor,
               length: Tensor) -> Tensor:  # fmt: skip
    """Attention of one backend of PyTorch over the valid slots, laid out as the operator's."""
    heads_first = (query, key[:, :valid], value[:, :valid])
    with sdpa_kernel(backend):
        found = scaled_dot_product_attention(*(each.transpose(1, 2) for each in heads_first))
    return found.transpose(1, 2)


def ways(shape: Shape, device: torch.device) -> Iterator[tuple[str, Callable[..., Tensor], bool]]:
    """Yields the name of each way, its call, and True if the call is not to halve keys."""
    if device.type == "cuda":
        yield "vidc", flash_attention, False
        yield "whole tiles", flash_attention, True
        yield "portable", ring_attention_16bit, False
        backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    else:
        yield "vidc", ring_attention_reference, False
        backends = {"math": SDPBackend.MATH}
    for name, backend in backends.items():
        yield f"sdpa {name}", partial(by_backend, backend, shape.valid), False


def in_8_bits(to: torch.dtype, query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Any:
    """Arguments of ``ring_attention_8bit`` from the 16-bit operator's; scales from all keys."""
    scales = calibrate(query.float(), key.float(), value.float(), to)
    ring = quantize_ring(key, value, scales, to)
    numbers = quantize_queries(query, scales, to)
    return (*numbers, ring.key, ring.value, scales.key_scale, scales.value_scale,
            scales.value_mean, length, dtype_name(query.dtype))  # fmt: skip


EIGHT_BITS = {"fp8": partial(in_8_bits, FP8), "int8": partial(in_8_bits, torch.int8)}
"""Functions that round a 16-bit operator's arguments, by the name of the way."""


def scaled_tflops(device: torch.device) -> float:
    """TFLOP/s of a square product in FP8."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device=device).to(FP8) for _ in range(2))
    one = torch.ones((), device=device)
    product = partial(torch._scaled_mm, a, b.t(), one, one, out_dtype=torch.bfloat16)
    form = Form(partial(product, use_fast_accum=True), [()], Clock(device))
    times = sampled({"product": form}, 10)["product"]
    return 2 * PRODUCT**3 / Summary.of(times).median / 1e9


def exact(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    """Attention over the valid slots in float32."""
    key, value = (each[:, : int(length)].float().transpose(1, 2) for each in (key, value))
    parts = query.float().transpose(1, 2).split(QUERIES_AT_ONCE, dim=2)
    found = [scaled_dot_product_attention(part, key, value) for part in parts]
    return torch.cat(found, 2).transpose(1, 2)


def measure(shape: Shape, samples: int, device: torch.device, peaks: dict[str, float]) -> Any:
    """All ways of one shape, sampled in turns."""
    clock = Clock(device)
    sets = argument_sets(partial(shape.draw, device), device)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = exact(*sets[0])
    forms: dict[str, Form] = {}
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    for name, call, whole in ways(shape, device):
        with ExitStack() as stack:
            if whole:
                stack.enter_context(mock.patch(WHOLE_TILES, lambda tiles, *_: tiles))
            try:
                error = call(*sets[0]).float() - wanted
                forms[name] = Form(call, sets, clock)
            except (RuntimeError, UnavailableError) as refusal:  # For want of a kernel.
                if name == "vidc":
                    raise
                missing[name] = str(refusal).splitlines()[0]
                continue
            errors[name] = float(error.norm() / wanted.norm())
    for name, in_bits in EIGHT_BITS.items():
        try:
            rounded = [in_bits(*each) for each in sets]
            error = ring_attention_8bit(*rounded[0]).float() - wanted
            forms[name] = Form(ring_attention_8bit, rounded, clock)
        except (RuntimeError, UnavailableError) as refusal:  # Of another GPU, or for want of it.
            missing[name] = str(refusal).splitlines()[0]
            continue
        errors[name] = float(error.norm() / wanted.norm())
    taken = sampled(forms, samples)
    found = {}
    for name, values in taken.items():
        eight = name in EIGHT_BITS
        figures = rates(values, shape.bytes_8bit if eight else shape.bytes, shape.operations)
        peak = peaks.get("fp8" if eight else shape.dtype)
        found[name] = {
            **figures,
            "relative_l2": errors[name],
            "of_products": figures["tflops"] / peak if peak else None,
            "vidc": judge(taken["vidc"], values).to_json(),
        }
    return {
        "shape": asdict(shape),
        "operations": shape.operations,
        "ways": found,
        "missing": missing,
        "gpu_state": gpu_state(device) if device.type == "cuda" else None,
    }


def main() -> None:
    args, device = attention_options(__doc__, "flash_attention*.cubin")
    # A CPU's products in 16 bits take minutes and say nothing.
    peaks = (
        {name: matmul_tflops(getattr(torch, name), device) for name in ("bfloat16", "float16")}
        | {"fp8": scaled_tflops(device)}
        if device.type == "cuda"
        else {}
    )
    torch.manual_seed(0)
    results = []
    for shape in SMALL if args.small else [*LONGLIVE, *SHORT]:
        result = measure(shape, args.samples, device, peaks)
        results.append(result)
        times = ", ".join(f"{n} {w['median']:.4f} ms" for n, w in result["ways"].items())
        print(f"{shape}: {times}", file=sys.stderr)
    document = {
        "schema": 1,
        "unit": "ms",
        "matmul_tflops": peaks,
        "copy_gbps": copy_gbps(device) if peaks else None,
        "results": results,
        "fingerprint": fingerprint(device),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
