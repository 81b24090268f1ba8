"""Counts the work of Stable Video Diffusion's presets, and predicts a T4's time from it.

    python benchmarks/svd_work.py > benchmarks/results/svd-t4-prediction.json

Nothing here is measured on a T4. Each component runs on the meta device; every operator's FLOPs and
the bytes of its tensors are counted, with attention as one operator. The least time of an operator
is that of its FLOPs or of its bytes, whichever is longer. ``unfused_s`` sums these over the
operators, each a kernel of its own; ``compute_s`` is the time of the FLOPs alone, as if fusion hid
all memory traffic. Engines lie between the two if their matmuls reach the rate.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import vidc.compiler.backends  # noqa: F401  # Settings are resolved for a backend.
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.exporters.component import Component
from vidc.exporters.families.svd import Svd
from vidc.plugins.signature import Role

FLOPS_PER_SECOND = 24e12
"""float16 rate that a T4 keeps up in long matmuls at 70 W, of 65e12 nominal: NVIDIA's developer
forum, thread 264462."""
BYTES_PER_SECOND = 320e9
"""Nominal bandwidth of a T4."""
SMALL = ("clip.height=320", "clip.width=576")
LARGE = ("clip.height=576", "clip.width=1024")
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("svd-t4", SMALL),
    ("svd-t4", LARGE),
    ("svd", ("clip.chunk=2", "sampler.steps=10", "sampler.cache_interval=3", *LARGE)),
    ("svd-lcm", ("clip.frames=14", "clip.chunk=2", *SMALL)),
    ("svd-lcm", ("clip.frames=14", "clip.chunk=2", "clip.height=256", "clip.width=256")),
)


@dataclass
class Work:
    """Work of one call.

    Attributes:
        flops: of matmuls, convolutions and attention; a multiplication and an addition are two.
        bytes: of the tensors that every operator reads and writes.
        unfused_s: least time of all operators, one after the other.
    """

    flops: float = 0.0
    bytes: float = 0.0
    unfused_s: float = 0.0

    def add(self, flops: float, *tensors: Any) -> None:
        """Adds an operator that reads and writes tensors."""
        moved = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
        self.flops += flops
        self.bytes += moved
        self.unfused_s += max(flops / FLOPS_PER_SECOND, moved / BYTES_PER_SECOND)


class Operators(TorchDispatchMode):
    """Counts operators that compute; views are free."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view:
            count = flop_registry.get(func.overloadpacket)
            flops = 0 if count is None else count(*args, **kwargs, out_val=result)
            self.work.add(flops, *tree_leaves((args, kwargs)), *tree_leaves(result))
        return result


class Attention(TorchFunctionMode):
    """Counts attention as one operator, whose scores stay on the chip."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = args[:3]
        result = query.new_empty(*query.shape[:-1], value.shape[-1])
        channels = query.shape[-1] + value.shape[-1]
        flops = 2 * math.prod(query.shape[:-1]) * key.shape[-2] * channels
        self.work.add(flops, query, key, value, result)
        return result


def work_of(component: Component) -> Work:
    """Counts one call of a component whose network is on the meta device."""
    specs = [spec for spec in component.signature.arguments if spec.role is not Role.OUTPUT]
    tensors = [
        torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta") for spec in specs
    ]
    work = Work()
    with torch.no_grad(), torch.device("meta"), Operators(work), Attention(work):
        component.module(*tensors)
    return work


def clip_calls(svd: Svd) -> Counter[str]:
    """Returns how often a clip calls each component."""
    spec = program_spec(svd)
    calls = Counter(dict.fromkeys(spec.components, 1))
    for of_action in spec.calls.values():
        calls |= Counter(of_action)
    return calls


def predicted(preset: str, assignments: tuple[str, ...]) -> dict[str, Any]:
    """Returns the work of every component of a preset, and the predicted time of a clip."""
    svd = resolve(preset, gpu="t4", assignments=assignments, environ={}).model
    assert isinstance(svd, Svd)
    components = {}
    for part in svd.parts.values():
        components |= part.components(part.network("fp16"))
    works = {name: work_of(component) for name, component in components.items()}
    calls = clip_calls(svd)
    flops = sum(works[name].flops * count for name, count in calls.items())
    compute = flops / FLOPS_PER_SECOND
    unfused = sum(works[name].unfused_s * count for name, count in calls.items())
    return {
        "preset": preset,
        "settings": list(assignments),
        "steps": svd.sampler.steps,
        "frames": svd.clip.frames,
        "components": {
            name: {"calls": calls[name], **asdict(work)} for name, work in works.items()
        },
        "clip_flops": flops,
        "clip_compute_s": compute,
        "clip_unfused_s": unfused,
        "frames_per_second": [svd.clip.frames / unfused, svd.clip.frames / compute],
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    document = {
        "schema": 1,
        "kind": "prediction from counted work; nothing was measured on a T4",
        "target": "t4",
        "flops_per_second": FLOPS_PER_SECOND,
        "bytes_per_second": BYTES_PER_SECOND,
        "cases": [predicted(*case) for case in CASES],
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
