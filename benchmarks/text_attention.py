"""Times attention to a padded text beside cuDNN's attention to all 512 keys, in turns.

    python benchmarks/text_attention.py KERNELS > benchmarks/results/text-attention-h100.json
    python benchmarks/text_attention.py --small --samples 6    # a dry run, also without a GPU

KERNELS is the folder of kernels that a build writes. Shapes are those of LongLive's
cross-attention. A prompt of n tokens has n + 1 distinct keys, or 512. Calls read the same tensors
again and again: an engine computes the queries right before, so they lie in the cache.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from attention import by_backend
from torch import Tensor
from torch.nn.attention import SDPBackend
from turns import Arguments, Form, attention_options, rates, sampled

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.verdict import judge
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.padded_attention_sm90 import padded_attention_sm90


@dataclass(frozen=True)
class Shape:
    """``tokens`` queries and ``slots`` keys, of which ``distinct`` differ."""

    distinct: int
    tokens: int = 4680
    slots: int = 512
    heads: int = 12
    head_dim: int = 128

    @property
    def operations(self) -> int:
        """Multiplications and additions of both matmuls over the distinct keys."""
        return 4 * self.heads * self.tokens * self.distinct * self.head_dim

    @property
    def bytes(self) -> int:
        """Bytes of queries, distinct keys and values, and outputs, once each, in bf16."""
        return 4 * self.heads * (self.tokens + self.distinct) * self.head_dim

    def draw(self, device: torch.device) -> Arguments:
        """Returns queries, keys, values and the number of distinct keys."""

        def normal(rows: int) -> Tensor:
            return torch.randn(1, rows, self.heads, self.head_dim, device=device).bfloat16()

        key, value = normal(self.slots), normal(self.slots)
        for each in (key, value):
            each[:, self.distinct :] = each[:, self.distinct - 1 : self.distinct].clone()
        length = torch.tensor([self.distinct], dtype=torch.int32, device=device)
        return normal(self.tokens), key, value, length


LONGLIVE = [Shape(distinct) for distinct in (17, 65, 129, 193, 257, 385, 512)]
SMALL = [Shape(5, tokens=24, slots=16, heads=2, head_dim=64)]


def measure(shape: Shape, samples: int, device: torch.device) -> dict[str, Any]:
    """Returns the times and errors of both ways for one shape."""
    cuda = device.type == "cuda"
    backend = SDPBackend.CUDNN_ATTENTION if cuda else SDPBackend.MATH
    ways: dict[str, Callable[..., Tensor]] = {
        "merged": padded_attention_sm90 if cuda else padded_attention,
        "every key": partial(by_backend, backend, shape.slots),
    }
    given = shape.draw(device)
    query, key, value, length = given
    wide = (query.float(), key.float(), value.float(), length)
    wanted = by_backend(SDPBackend.MATH, shape.slots, *wide)
    errors = {name: call(*given).float() - wanted for name, call in ways.items()}
    clock = Clock(device)
    taken = sampled({name: Form(call, [given], clock) for name, call in ways.items()}, samples)
    found = {}
    for name, values in taken.items():
        found[name] = {
            **rates(values, shape.bytes, shape.operations),
            "relative_l2": float(errors[name].norm() / wanted.norm()),
        }
    return {
        "shape": asdict(shape),
        "ways": found,
        "merged_against_every_key": judge(taken["merged"], taken["every key"]).to_json(),
        "gpu_state": gpu_state(device) if cuda else None,
    }


def main() -> None:
    args, device = attention_options(__doc__, "padded_attention*.cubin")
    torch.manual_seed(0)
    results = []
    for shape in SMALL if args.small else LONGLIVE:
        results.append(measure(shape, args.samples, device))
        times = ", ".join(f"{n} {w['median']:.4f} ms" for n, w in results[-1]["ways"].items())
        print(f"{shape}: {times}", file=sys.stderr)
    document = {"schema": 1, "unit": "ms", "results": results, "fingerprint": fingerprint(device)}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
