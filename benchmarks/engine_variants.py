"""Times an engine on a GPU with and without rewrites of its graph, and with measured matmuls.

    python benchmarks/engine_variants.py > svd.json
    python benchmarks/engine_variants.py --preset oasis-500m --component denoise \\
        --variants none all "matmuls measured" > oasis.json

Compiles a component of a preset in fp16 with random weights in each variant, in parallel. Writes
JSON to stdout: milliseconds of one replay of its CUDA graph, the variants in turns; the ratio to
the variant without rewrites; the relative L2 to float32; and the time of each kernel.

``all`` has every rewrite of a build; forms of convolutions are chosen by rule, where a build times
them. In ``matmuls measured``, inductor also times its own matmuls beside cuBLAS's. Attention with
several queries is not supported here: only bundles contain its compiled kernel.

The default, ``denoise_shallow`` of ``svd``, is the UNet's first resolution of 14 frames of 576x1024
with guidance: two fifths of a whole pass, and a quarter of its compilation.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from packages import compiled, constants_of, kernels, write_package
from torch import Tensor
from torch.export.passes import move_to_device_pass

from vidc.compiler.backends.aoti import gelu_epilogues
from vidc.compiler.backends.aoti.cuda import REWRITES, WRITTEN_ONCE, for_cuda
from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.verdict import judge
from vidc.compiler.config.resolve import resolve
from vidc.exporters.part import Part
from vidc.exporters.program import export_program, weight_names
from vidc.plugins.signature import Role, TensorSpec
from vidc.runtime.strict import plain

TURNS, WARM_UP, FP16 = 30, 3, torch.float16
NONE = "none"
ALL = (*REWRITES, gelu_epilogues.NAME)
MATMULS = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
VARIANTS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    NONE: ((), {}),
    "sums written once": ((), WRITTEN_ONCE),
    **{name: ((name,), {}) for name in ALL},
    "all": (ALL, {}),
    "matmuls measured": (ALL, MATMULS),
}
"""Each variant's rewrites, and options of inductor besides a build's."""


def part_of(preset: str, component: str) -> Part:
    """Returns the part of a preset that a component belongs to."""
    assignments = ("sampler.cache_interval=3",) if component == "denoise_shallow" else ()
    model = resolve(preset, gpu="cpu", assignments=assignments, environ={}, engines=False).model
    if component not in model.components:
        raise SystemExit(f"{preset} has no {component}: it has {', '.join(model.components)}")
    part: Part = model.parts[model.components[component]]
    return part


def compile_variant(preset: str, component: str, name: str, folder: Path) -> None:
    """Writes a variant's package, its constants and the names of channels-last weights."""
    rewrites, options = VARIANTS[name]
    part = part_of(preset, component)
    program = export_program(part.components(part.network("fp16"))[component])
    lowered = for_cuda(program, bool(rewrites), without={*ALL} - {*rewrites})
    found = {*lowered.fusion.operators, *([gelu_epilogues.NAME] if lowered.epilogues else [])}
    if name in ALL and name not in found:
        raise SystemExit(f"{component} has no {name}: leave it out of --variants")
    write_package(lowered, folder, name, {**(lowered.inductor if rewrites else {}), **options})


@dataclass
class Variant:
    """An engine with its weights, captured as a CUDA graph."""

    package: Any
    weights: dict[str, Tensor]
    graph: torch.cuda.CUDAGraph
    result: Tensor

    @classmethod
    def of(cls, part: Part, name: str, folder: Path, given: list[Tensor]) -> "Variant":
        package = torch._C._aoti.AOTIModelPackageLoader(
            str(folder / f"{name}.pt2"), "model", True, 1, given[0].device.index
        )
        weights = constants_of(package.get_constant_fqns(), folder, name, partial(drawn, part))
        package.load_constants(weights, False, True, True)
        run = partial(package.boxed_run, [*given])
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = package.boxed_run([*given])[0]
        return cls(package, weights, graph, result)


@cache
def random_weights(part: Part) -> Mapping[str, Any]:
    return part.random_weights(1)


@cache
def drawn(part: Part, key: str) -> Tensor:
    """Returns a random weight by its name in a program, float16 on the GPU."""
    return random_weights(part)[key.removeprefix(f"{part.group}.")].load().to("cuda", FP16)


def inputs(part: Part, component: str) -> list[Tensor]:
    """Random inputs and states. Timesteps and clip weights are in [0, 1]; integers are 1."""
    signature = part.components(part.network("fp16"))[component].signature
    generator = torch.Generator().manual_seed(3)

    def one(spec: TensorSpec) -> Tensor:
        if not spec.torch_dtype.is_floating_point:
            return torch.ones(spec.shape)
        if spec.name in ("timestep", "clip.weights"):
            return torch.rand(spec.shape, generator=generator)
        return torch.randn(spec.shape, generator=generator)

    return [one(spec).to("cuda", spec.torch_dtype) for spec in signature.arguments]


@torch.inference_mode()
def float32_result(part: Part, component: str, given: list[Tensor]) -> Tensor:
    """Result of PyTorch in float32."""
    program = export_program(part.components(part.network("fp32"))[component])
    names = weight_names(program)
    used = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    keys = [names[node] for node in sorted(used & names.keys())]
    program = move_to_device_pass(program, "cuda")
    module = program.module(check_guards=False)
    parameters = dict(module.named_parameters())
    for key in keys:
        parameters[key].data = drawn(part, key).float()
    signature = part.components(part.network("fp32"))[component].signature
    wanted = [x.to(s.torch_dtype) for x, s in zip(given, signature.arguments, strict=True)]
    outputs = [spec for spec in signature if spec.role is Role.OUTPUT]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found = module(*wanted)[: len(outputs)]
    result: Tensor = found[0].cpu()
    return result


def measure(part: Part, component: str, names: list[str], folder: Path) -> dict[str, Any]:
    """Returns each variant's error, samples, median, kernels and verdict against ``none``."""
    given, clock = inputs(part, component), Clock(torch.device("cuda"))
    wanted = float32_result(part, component, given)
    torch.cuda.empty_cache()
    variants = {name: Variant.of(part, name, folder, given) for name in names}
    rows: dict[str, Any] = {}
    for name, variant in variants.items():
        for _ in range(WARM_UP):
            variant.graph.replay()
        torch.cuda.synchronize()
        error = (variant.result.float().cpu() - wanted).norm() / wanted.norm()
        rows[name] = {"relative_l2": error.item(), "samples_ms": []}
        rows[name]["kernels_ms"] = kernels(variant.graph.replay)[:40]
    for turn in range(TURNS):
        for name in variants if turn % 2 else reversed(variants):
            rows[name]["samples_ms"].append(clock.time(variants[name].graph.replay)[1])
    first = rows[NONE]["samples_ms"]
    for name, row in rows.items():
        row |= plain(Summary.of(row["samples_ms"]))
        row["against_none"] = judge(row["samples_ms"], first).to_json()
        print(f"{name}: {row['median']:.2f} ms, L2 {row['relative_l2']:.2e}", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="svd")
    parser.add_argument("--component", default="denoise_shallow")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[NONE, *REWRITES, "all"])
    options = parser.parse_args()
    preset, component = options.preset, options.component
    part, names = part_of(preset, component), list(dict.fromkeys([NONE, *options.variants]))
    with compiled(partial(compile_variant, preset, component), names) as folder:
        rows = measure(part, component, names, folder)
    device = torch.device("cuda")
    mark = {"fingerprint": fingerprint(device), "gpu_state": gpu_state(device)}
    what = {"preset": preset, "component": component}
    print(json.dumps({"schema": 1, **what, **mark, "variants": rows}))


if __name__ == "__main__":
    main()
