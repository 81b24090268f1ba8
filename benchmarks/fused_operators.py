"""Times the fused operators against torch.compile of their references, in turns.

    python benchmarks/fused_operators.py > benchmarks/results/fused-operators-h200.json
    python benchmarks/fused_operators.py --small --samples 6    # a dry run, also without a GPU

Bytes are those that the operator must move at least: each input and each output once. Without a
GPU, the operators' references run in their place.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from operator_cases import SMALL_CLIP, Case, ClipSizes, clip_cases
from torch import Tensor
from turns import Arguments, Form, argument_sets, options, rates, sampled

from vidc.compiler.bench.clock import Clock, copy_gbps
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.verdict import judge
from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.gelu_quantize import gelu_quantize, gelu_quantize_reference
from vidc.plugins.ops.qk_norm_rope_ring_write import (
    qk_norm_rope_ring_write,
    qk_norm_rope_ring_write_reference,
)
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import (
    qk_norm_rope_ring_write_static,
    qk_norm_rope_ring_write_static_reference,
)

FP8 = torch.float8_e4m3fn
BF16 = torch.bfloat16
EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Sizes of a block of latent frames."""

    frames: int = 3
    frame_tokens: int = 1560
    heads: int = 12
    head_dim: int = 128
    ffn: int = 8960
    window: int = 18720
    sink: int = 4680

    @property
    def tokens(self) -> int:
        return self.frames * self.frame_tokens

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


SMALL = Sizes(frame_tokens=8, heads=2, head_dim=64, ffn=256, window=96, sink=24)


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """All that is measured."""

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    tokens = sizes.tokens
    for dtype in (BF16, FP8):
        scale = torch.ones(1, device=device) * 0.05 if dtype is FP8 else None

        def gelu(dtype: torch.dtype = dtype, scale: Tensor | None = scale) -> Arguments:
            return (draw(1, tokens, sizes.ffn, dtype=BF16), dtype_name(dtype), scale)

        to = "fp8" if dtype is FP8 else "bf16"
        yield Case(
            f"gelu_quantize to {to}", gelu_quantize, gelu_quantize_reference, gelu,
            tokens * sizes.ffn * (2 + dtype.itemsize),
        )  # fmt: skip

    def centered() -> Arguments:
        scale, mean = torch.ones(1, device=device) * 0.05, draw(sizes.ffn)
        return (draw(1, tokens, sizes.ffn, dtype=BF16), dtype_name(FP8), scale, mean)

    yield Case(
        "gelu_quantize to fp8, less a mean", gelu_quantize, gelu_quantize_reference, centered,
        tokens * sizes.ffn * (2 + FP8.itemsize) + 4 * sizes.ffn,
    )  # fmt: skip
    yield from ring_cases(sizes, device, draw)


def ring_cases(sizes: Sizes, device: torch.device, draw: Callable[..., Tensor]) -> Iterator[Case]:
    """The forms of the ring write; the block wraps in its middle."""
    tokens, width, window = sizes.tokens, sizes.width, sizes.window
    inputs = tokens * (3 * width * 2 + sizes.head_dim * 4)
    cache = (1, window, sizes.heads, sizes.head_dim)
    transposed = (1, sizes.heads, sizes.head_dim, window)

    def packed() -> Arguments:
        angles = draw(tokens, sizes.head_dim // 2)
        position = torch.tensor([window - tokens // 2], device=device)
        weights = (draw(width, dtype=BF16), draw(width, dtype=BF16))
        return (draw(1, tokens, 3 * width, dtype=BF16), *weights, angles.cos(), angles.sin(),
                position)  # fmt: skip

    def whole() -> Arguments:
        return (*packed(), draw(*cache, dtype=BF16), draw(*cache, dtype=BF16), sizes.sink, EPS)

    yield Case(
        "qk_norm_rope_ring_write bf16", qk_norm_rope_ring_write, qk_norm_rope_ring_write_reference,
        whole, inputs + tokens * 3 * width * 2,
    )  # fmt: skip

    def eight(dtype: torch.dtype) -> Arguments:
        scales = [torch.full((sizes.heads,), 0.05, device=device) for _ in range(2)]
        caches = (torch.zeros(shape, dtype=torch.int8, device=device).view(dtype)
                  for shape in (cache, transposed))  # fmt: skip
        mean = draw(sizes.heads, sizes.head_dim)
        return (*packed(), *caches, *scales, mean, sizes.sink, EPS, True, True)

    for name, dtype in (("static fp8", FP8), ("static int8", torch.int8)):
        yield Case(
            f"qk_norm_rope_ring_write_{name}, values transposed",
            qk_norm_rope_ring_write_static,
            qk_norm_rope_ring_write_static_reference,
            partial(eight, dtype),
            inputs + tokens * (3 * width + 4 * sizes.heads),
        )


def measure(case: Case, samples: int, device: torch.device, copy: float) -> dict[str, Any]:
    """All forms of a case, sampled in turns."""
    sets = argument_sets(case.make, device)
    torch._dynamo.reset()
    clock = Clock(device)
    # A dry run takes no C++ compiler: its times say nothing.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(case.reference, fullgraph=True, backend=backend)
    ways = {"kernel": case.operator, "compiled": compiled, **case.rivals}
    forms = {name: Form(way, sets, clock) for name, way in ways.items()}
    taken = sampled(forms, samples)
    verdict = judge(taken["kernel"], taken["compiled"])
    return {
        "case": case.name,
        "bytes": case.moved,
        "sets": len(sets),
        **{name: beside_copy(values, case.moved, copy) for name, values in taken.items()},
        **verdict.to_json(),
        "gpu_state": gpu_state(device) if device.type == "cuda" else None,
    }


def beside_copy(values: list[float], moved: int, copy: float) -> dict[str, Any]:
    """Figures of samples in milliseconds; ``of_copy`` is the share of a copy's bandwidth."""
    found = rates(values, moved)
    return {**found, "of_copy": found["gbps"] / copy}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--frames", type=int, default=14, help="of a clip")
    parser.add_argument("--only", nargs="*", default=[""], help="cases with this in their names")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    copy = copy_gbps(device)
    torch.manual_seed(0)
    results = []
    every = (
        *cases(SMALL if args.small else Sizes(), device),
        *clip_cases(SMALL_CLIP if args.small else ClipSizes(frames=args.frames), device),
    )
    for case in every:
        if not any(part in case.name for part in args.only):
            continue
        result = measure(case, args.samples, device, copy)
        results.append(result)
        ours, theirs = result["kernel"], result["compiled"]
        print(
            f"{case.name}: {ours['median'] * 1e3:.1f} us, {ours['gbps']:.0f} GB/s, "
            f"{ours['of_copy']:.0%} of a copy's; compiled {theirs['median'] * 1e3:.1f} us: "
            f"{result['verdict']}, {result['speedup']:.2f}x"
            + "".join(f"; {name} {result[name]['median'] * 1e3:.1f} us" for name in case.rivals),
            file=sys.stderr,
        )
    document = {
        "schema": 1,
        "sizes": vars(SMALL if args.small else Sizes()),
        "clip_sizes": vars(SMALL_CLIP if args.small else ClipSizes(frames=args.frames)),
        "unit": "ms",
        "copy_gbps": copy,
        "results": results,
        "fingerprint": fingerprint(device),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
