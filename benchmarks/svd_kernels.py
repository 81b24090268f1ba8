"""Times engines of an SVD clip on a GPU with and without each of their fused operators.

    python benchmarks/svd_kernels.py > svd-kernels.json
    python benchmarks/svd_kernels.py --component denoise > svd-kernels-denoise.json

Compiles a component of preset svd in fp16 with random weights in each variant, in parallel. Writes
JSON to stdout: milliseconds of one replay of its CUDA graph, the variants in turns; the ratio to
the variant without operators; the relative L2 to float32; and the time of each kernel.

The default, ``denoise_shallow``, is the UNet's first resolution of 14 frames of 576x1024 with
guidance: two fifths of a whole pass, and a quarter of its compilation.
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

from vidc.compiler.backends.aoti.cuda import REWRITES, for_cuda
from vidc.compiler.backends.aoti.group_norms import INDUCTOR, OPERATOR
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
COMPONENTS = {"denoise_shallow": "unet", "denoise": "unet", "vae_decode": "vae"}
"""Components, and the part of each."""
ALL = tuple(REWRITES)
VARIANTS: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]] = {
    NONE: ((), {}),
    "sums written once": ((), INDUCTOR),
    **{name: ((name,), INDUCTOR if name == OPERATOR else {}) for name in ALL},
    "all": (ALL, INDUCTOR),
}
"""Fused operators of each, and options of inductor."""


def part_of(component: str) -> Part:
    assignments = ("sampler.cache_interval=3",) if component == "denoise_shallow" else ()
    model = resolve("svd", gpu="cpu", assignments=assignments, environ={}, engines=False).model
    part: Part = model.parts[COMPONENTS[component]]
    return part


def compile_variant(component: str, name: str, folder: Path) -> None:
    """Writes a variant's package, its constants and the names of channels-last weights."""
    operators, options = VARIANTS[name]
    part = part_of(component)
    program = export_program(part.components(part.network("fp16"))[component])
    lowered = for_cuda(program, bool(operators), without={*ALL} - {*operators})
    if not {*operators} <= {*lowered.fusion.operators, *_absent(component)}:
        raise SystemExit(f"{name}: the program calls {lowered.fusion.operators}")
    write_package(lowered, folder, name, options)


def _absent(component: str) -> tuple[str, ...]:
    """Returns the operators that a component has no use for: the VAE attends in space alone."""
    return ("temporal_attention",) if component == "vae_decode" else ()


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
            (result,) = package.boxed_run([*given])
        return cls(package, weights, graph, result)


@cache
def random_weights(part: Part) -> Mapping[str, Any]:
    return part.random_weights(1)


@cache
def drawn(part: Part, key: str) -> Tensor:
    """Returns a random weight by its name in a program, float16 on the GPU."""
    return random_weights(part)[key.removeprefix(f"{part.group}.")].load().to("cuda", FP16)


def inputs(part: Part, component: str) -> list[Tensor]:
    """Random inputs and states; weights of mixers are from 0 to 1."""
    signature = part.components(part.network("fp16"))[component].signature
    generator = torch.Generator().manual_seed(3)

    def one(spec: TensorSpec) -> Tensor:
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


def measure(part: Part, component: str, folder: Path) -> dict[str, Any]:
    given, clock = inputs(part, component), Clock(torch.device("cuda"))
    wanted = float32_result(part, component, given)
    torch.cuda.empty_cache()
    variants = {name: Variant.of(part, name, folder, given) for name in VARIANTS}
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
    parser.add_argument("--component", choices=COMPONENTS, default="denoise_shallow")
    component = parser.parse_args().component
    with compiled(partial(compile_variant, component), VARIANTS) as folder:
        rows = measure(part_of(component), component, folder)
    device = torch.device("cuda")
    mark = {"fingerprint": fingerprint(device), "gpu_state": gpu_state(device)}
    print(json.dumps({"schema": 1, "component": component, **mark, "variants": rows}))


if __name__ == "__main__":
    main()
