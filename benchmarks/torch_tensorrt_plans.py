"""Builds components by backend ``torch_tensorrt`` for GPUs of TensorRT-RTX, and reads the plans.

    pip install --no-deps torch-tensorrt-rtx==2.13.0 dllist
    python benchmarks/torch_tensorrt_plans.py benchmarks/results/torch-tensorrt-plans.json

On a machine with a GPU, of any kind, the package is imported as it is. It imports nowhere else, so
without a GPU it is imported without its own libraries and with the stand-ins of
``torch_tensorrt_coverage.py``; rows say which. In both cases:

- The builder is told the compute capability, since the package builds for the GPU at hand.
- A plan's bytes are taken where the package would load it, since no other GPU loads it.
- Networks are kept as they are created.
- Release 2.11 does not import beside TensorRT-RTX 1.7 and is adapted to it by
  ``torch_tensorrt_release.py``. What it says without that is recorded as ``import``.

The rest is real: its lowering and converters, vidc's converters, TensorRT-RTX's builder. No plan
runs. A row's ``wrong`` is empty if the engine is as expected; the exit status is 1 if one is not.
The file is written after each row.
"""

import argparse
import inspect
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch_tensorrt_coverage import MODELS, covered, import_registry, refused_import, told
from torch_tensorrt_release import ADAPTED, RELEASE, keep_attention, supply_names

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.backends.tensorrt.build import build_for
from vidc.compiler.backends.tensorrt.network import describe_network
from vidc.compiler.backends.tensorrt.plan import describe_plan
from vidc.compiler.backends.torch_tensorrt.backend import backend
from vidc.compiler.backends.torch_tensorrt.convert import functional_form
from vidc.compiler.backends.torch_tensorrt.package import PACKAGES
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.resolve import resolve
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.export import export_component
from vidc.exporters.program import load_program
from vidc.plugins.errors import VidcError
from vidc.plugins.signature import Role, state_output

BACKEND, TARGET = "torch_tensorrt", "rtx4090"
PACKAGE = PACKAGES["tensorrt_rtx"]
CAPABILITIES = ("8.9", "12.0")
WHOLE, IN_PART = "whole", "without its libraries, with stand-ins for a GPU"
"""Ways to import the package."""
TYPES = {"fp32": "float", "fp16": "half", "bf16": "bf16"}
"""Names of the network's types."""


@dataclass(frozen=True)
class Case:
    """One engine to build: a component of a preset with these settings, for a GPU architecture."""

    preset: str
    assignments: tuple[str, ...]
    component: str
    precision: str
    capability: str = CAPABILITIES[0]


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


def imported(folder: Path) -> tuple[Any, str]:
    """Imports the package into this process for good; returns it and the way it was imported."""
    if adapted():
        supply_names()
    found = imported_as_is(folder)
    if adapted():
        keep_attention()
    return found


def adapted() -> bool:
    return (PACKAGE.version() or "").startswith(f"{RELEASE}.")


def imported_as_is(folder: Path) -> tuple[Any, str]:
    if torch.cuda.is_available():
        return PACKAGE.module(), WHOLE
    spec = find_spec(BACKEND)
    assert spec is not None, PACKAGE.install
    assert spec.origin is not None
    package = folder / BACKEND
    package.mkdir()
    for item in Path(spec.origin).parent.iterdir():
        if item.name != "lib":
            (package / item.name).symlink_to(item)
    (package / "lib").mkdir()
    return import_registry(folder), IN_PART


def watch_builder(capability: str) -> list[Any]:
    """Lets the package build for a compute capability and load no plan.

    Returns:
        the networks that it creates, filled as it does.
    """
    product = import_module("tensorrt")
    networks = []

    class Builder(product.Builder):  # type: ignore[misc]  # known at run time alone
        def create_network(self, flags: int = 0) -> Any:
            network = super().create_network(flags)
            networks.append(network)
            return network

        def create_builder_config(self) -> Any:
            config = super().create_builder_config()
            build_for(product, config, (capability,))
            return config

    # What the package imports as ``tensorrt`` only stands before the product's own module.
    vars(product).update(Builder=Builder, Runtime=Runtime)
    return networks


def build(case: Case) -> dict[str, Any]:
    """A row: what the engine is, or what was said instead of one."""
    sizes = resolve(
        case.preset, gpu=TARGET, backend=BACKEND, precision=case.precision,
        assignments=case.assignments, environ={},
    )  # fmt: skip
    row: dict[str, Any] = asdict(case)
    with TemporaryDirectory() as folder:
        site, exported, output = (Path(folder, name) for name in ("package", "export", "engine"))
        for part in (site, exported, output):
            part.mkdir()
        module, way = imported(site)
        row |= {"torch_tensorrt": module.__version__, "imported": way, "torch": torch.__version__}
        networks = watch_builder(case.capability)
        part = sizes.model.parts[sizes.model.components[case.component]]
        component = export_component(part, case.precision, case.component, exported)
        started = time.perf_counter()
        try:
            engine = backend.compile(component, sizes.target, {}, output)
        except VidcError as error:
            return row | {"exception": told(error), "wrong": [error.message]}
        row["build_s"] = time.perf_counter() - started
        (network,) = networks
        layers = sizes.model.transformer.layers
        row |= looked_into(case, layers, component.aligned, engine, output, network)
        return row | calls(component) | {"parameters": converting_parameters()}


def calls(component: ExportedComponent) -> dict[str, Any]:
    """Calls of the program that has been built, with and without a converter."""
    program = load_program(component.program)
    return covered(functional_form(program, component.signature, component.aligned)[0])


def looked_into(
    case: Case, layers: int, aligned: bool, engine: CompiledEngine, output: Path, network: Any
) -> dict[str, Any]:
    plan = describe_plan(output / engine.files[0])
    found = describe_network(SimpleNamespace(definition=network, plugins={}), PACKAGE.product)  # type: ignore[arg-type]
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
    if plan.architectures != (f"sm{case.capability.replace('.', '')}",):
        says.append(f"it is for {', '.join(plan.architectures)}, not {case.capability}")
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
    """Binding of a tensor of an engine's signature."""
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


def cases(model: str, precision: str) -> Iterator[Case]:
    preset, assignments = MODELS[model]
    sizes = resolve(preset, gpu=TARGET, backend=BACKEND, assignments=assignments, environ={})
    for component in sizes.model.components:
        for capability in CAPABILITIES:
            yield Case(preset, assignments, component, precision, capability)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("--precision", choices=TYPES, default="bf16")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one")
    parser.add_argument("--component", action="append", help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="builds at a time")
    args = parser.parse_args()
    chosen = [
        case
        for model in args.model or MODELS
        for case in cases(model, args.precision)
        if case.component in (args.component or [case.component])
    ]
    document: dict[str, Any] = {
        "schema": 1,
        "import": refused_import(),
        "adapted": ADAPTED if adapted() else {},
        "rows": [],
        "fingerprint": fingerprint(),
    }
    # A process for each: what it imports stays, with what stands in for a GPU.
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(build, case) for case in chosen]):
            row = done.result()
            row.pop("parameters", None)
            document["rows"].append(row)
            document["rows"].sort(key=lambda row: chosen.index(case_of(row)))
            args.output.write_text(json.dumps(document, indent=1) + "\n")
            said = row["wrong"] or f"as expected, {row['build_s']:.1f} s"
            name = f"{row['preset']} {row['component']} for {row['capability']}"
            print(f"{name}: {said}", file=sys.stderr, flush=True)
    sys.exit(any(row["wrong"] for row in document["rows"]))


def case_of(row: dict[str, Any]) -> Case:
    return Case(**{field.name: row[field.name] for field in fields(Case)})


if __name__ == "__main__":
    main()
