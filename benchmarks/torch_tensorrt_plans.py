"""Builds components by backend ``torch_tensorrt`` on a machine without a GPU, and looks into them.

    pip install --no-deps torch-tensorrt-rtx==2.13.0 dllist
    python benchmarks/torch_tensorrt_plans.py > benchmarks/results/torch-tensorrt-plans.json

The package imports where there is a GPU, and loads every plan that it builds. So it is imported
without its own libraries and with the stand-ins of ``torch_tensorrt_coverage.py``, and one more
takes a plan's bytes where it would be loaded; networks are kept as they are created. Everything
between is real: its lowering and converters, vidc's converters, TensorRT-RTX's builder. Without a
GPU to ask, that builds for compute capability 8.0.

A row's ``wrong`` is empty where the engine is what it should be; the exit status is 1 where one is
not. Nothing here runs an engine.
"""

import argparse
import inspect
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from torch_tensorrt_coverage import MODELS, import_registry, told

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.backends.tensorrt.network import describe_network
from vidc.compiler.backends.tensorrt.plan import describe_plan
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.backends.torch_tensorrt.package import PACKAGES
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.resolve import resolve
from vidc.exporters.export import export_component
from vidc.plugins.errors import VidcError
from vidc.plugins.signature import Role, state_output

BACKEND, TARGET = "torch_tensorrt", "rtx4090"
PACKAGE = PACKAGES["tensorrt_rtx"]
TYPES = {"fp32": "float", "fp16": "half", "bf16": "bf16"}
"""Names of the network's types."""


@dataclass(frozen=True)
class Case:
    """One engine to build: a component of a preset with these settings."""

    preset: str
    assignments: tuple[str, ...]
    component: str
    precision: str


class Built:
    """A plan's bytes, where the package holds a plan that was loaded."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan

    def serialize(self) -> Any:
        return self._plan


class Runtime:
    """Loads no plan."""

    def __init__(self, logger: Any) -> None:
        pass

    def deserialize_cuda_engine(self, plan: Any) -> Built:
        return Built(plan)


def stand_in(folder: Path) -> tuple[Any, list[Any]]:
    """The package, imported into this process for good, and the networks that it creates."""
    spec = find_spec(BACKEND)
    assert spec is not None, PACKAGE.install
    assert spec.origin is not None
    package = folder / BACKEND
    package.mkdir()
    for item in Path(spec.origin).parent.iterdir():
        if item.name != "lib":
            (package / item.name).symlink_to(item)
    (package / "lib").mkdir()
    module = import_registry(folder)
    product = import_module("tensorrt")
    networks = []

    class Builder(product.Builder):  # type: ignore[misc]  # known at run time alone
        def create_network(self, flags: int = 0) -> Any:
            network = super().create_network(flags)
            networks.append(network)
            return network

    # What the package imports as ``tensorrt`` only stands before the product's own module.
    vars(product).update(Builder=Builder, Runtime=Runtime)
    return module, networks


def build(case: Case) -> dict[str, Any]:
    """A row: what the engine is, or what was said instead of one."""
    sizes = resolve(
        case.preset, gpu=TARGET, backend=BACKEND, precision=case.precision,
        assignments=case.assignments, environ={},
    )  # fmt: skip
    row: dict[str, Any] = asdict(case)
    with TemporaryDirectory() as folder:
        parts = [Path(folder, name) for name in ("package", "export", "engine")]
        for part in parts:
            part.mkdir()
        site, exported, output = parts
        module, networks = stand_in(site)
        group = sizes.model.components[case.component]
        component = export_component(
            sizes.model.parts[group], case.precision, case.component, exported
        )
        backend = import_module(f"vidc.compiler.backends.{BACKEND}").backend
        started = time.perf_counter()
        try:
            engine = backend.compile(component, sizes.target, {}, output)
        except VidcError as error:
            return row | {"exception": told(error), "wrong": [error.message]}
        row["build_s"] = time.perf_counter() - started
        (network,) = networks
        layers = sizes.model.transformer.layers
        return row | looked_into(case, layers, component.aligned, engine, output, network) | {
            "torch_tensorrt": module.__version__,
            "parameters": converting_parameters(),
        }  # fmt: skip


def looked_into(
    case: Case, layers: int, aligned: bool, engine: CompiledEngine, output: Path, network: Any
) -> dict[str, Any]:
    plan = describe_plan(output / engine.files[0])
    found = describe_network(SimpleNamespace(definition=network), PRODUCTS["tensorrt_rtx"])  # type: ignore[arg-type]
    named = tensors(network, engine.options["names"])
    attentions = found["attentions"]
    ring = [state.name for state in engine.signature.states if state.name.startswith("ring.")]
    updates = sum(found["layers"].get("kv_cache_update", {}).values())
    says = []
    expected = {
        (way, name, spec.shape, spec.dtype) for spec in engine.signature for way, name in ways(spec)
    }
    if missing := expected - named:
        says.append(f"it lacks {sorted(missing)[0]}")
    # What it reads besides is in the files of the group's weights.
    says += [f"it has {each}" for each in sorted(named - expected)
             if each[0] == "out" or not each[1].startswith(("transformer.", "vae."))]  # fmt: skip
    for kind in ("matrix_multiply", "convolution", "kv_cache_update"):
        if others := found["layers"].get(kind, {}).keys() - {TYPES[case.precision]}:
            says.append(f"{kind} in {', '.join(others)}")
    if not found["layers"].keys() & {"matrix_multiply", "convolution"}:
        says.append("it multiplies nothing")
    if ring and case.component != "text_kv":
        in_place = [name for name in ring if engine.signature[name].in_place]
        if updates != (2 * layers if aligned else 0) or len(in_place) != updates:
            says.append(f"{updates} updates of a cache, {len(in_place)} of them in place")
        # The clean pass ends with the last layer's keys and values.
        attending = layers if case.component == "denoise" else layers - 1
        if len(attentions) != 2 * attending:
            says.append(f"{len(attentions)} attentions, not {2 * attending}")
        if sum(each["reads_length"] for each in attentions) != (attending if aligned else 0):
            says.append("not every attention over the ring reads its valid length")
        if case.precision != "fp32" and plan.fused_attentions != len(attentions):
            says.append(f"{plan.fused_attentions} of {len(attentions)} fused")
    return {
        "plan_bytes": plan.bytes,
        "tensorrt_rtx": plan.version,
        "architectures": list(plan.architectures),
        "attentions": len(attentions),
        "fused": plan.fused_attentions,
        "cache_updates": updates,
        "layers": found["layers"],
        "wrong": says,
    }


def tensors(network: Any, names: dict[str, str]) -> set[tuple[str, str, tuple[int, ...], str]]:
    """A network's inputs and outputs by their names in the bundle, with shapes and dtypes."""
    dtypes = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64"}
    given = [("in", network.get_input(index)) for index in range(network.num_inputs)]
    given += [("out", network.get_output(index)) for index in range(network.num_outputs)]
    return {(way, names[t.name], tuple(t.shape), dtypes[t.dtype.name]) for way, t in given}


def ways(spec: Any) -> Iterator[tuple[str, str]]:
    """How an engine takes and gives a tensor of its signature."""
    if spec.reads:
        yield "in", spec.name
    if spec.writes:
        yield "out", spec.name if spec.role is Role.OUTPUT else state_output(spec.name)


def converting_parameters() -> list[str]:
    """The names of what the package's own function takes."""
    dynamo = import_module("torch_tensorrt.dynamo")
    return list(
        inspect.signature(dynamo.convert_exported_program_to_serialized_trt_engine).parameters
    )


def cases(precision: str) -> Iterator[Case]:
    for preset, assignments in MODELS.values():
        sizes = resolve(preset, gpu=TARGET, backend=BACKEND, assignments=assignments, environ={})
        for component in sizes.model.components:
            yield Case(preset, assignments, component, precision)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", choices=TYPES, default="bf16")
    args = parser.parse_args()
    rows = []
    # A process for each: what it imports stays, with what stands in for a GPU.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(build, cases(args.precision)):
            row.pop("parameters", None)
            rows.append(row)
            said = row["wrong"] or f"as it should be, {row['build_s']:.1f} s"
            print(f"{row['preset']} {row['component']}: {said}", file=sys.stderr)
    json.dump({"schema": 1, "rows": rows, "fingerprint": fingerprint()}, sys.stdout, indent=1)
    print()
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
