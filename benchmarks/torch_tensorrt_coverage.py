"""Asks Torch-TensorRT which operators of each component it converts, on a machine without a GPU.

    pip download --no-deps torch-tensorrt-rtx==2.13.0 dllist torch-tensorrt==2.13.0 -d WHEELS
    python benchmarks/torch_tensorrt_coverage.py WHEELS \\
        benchmarks/results/torch-tensorrt-coverage.json

Rows that the file already has are reused if the exporters' sources have not changed since. So a
stopped run can go on, and rows of older sources are computed again.

Wheels are unpacked beside what is installed and nothing is replaced; torch must be the version that
they are for, and tensorrt_rtx must be installed. Torch-TensorRT imports only where there is a GPU,
so the error of each package's import is recorded first. Then its registry is imported from
``torch-tensorrt-rtx`` without the package's libraries, which link torch's for CUDA; ``STAND_INS``
answer what it asks of a GPU. It has two more converters if ModelOpt is installed. Decompositions,
lowering passes, converters and their validators are its own. The converters of ``torch-tensorrt``
are the same files, except those that the output lists as different.

A component is taken in two forms: ``exported``, in which vidc's operators are opaque and states are
written in place, and ``portable``, of standard operators, with weights given and states returned.
"""

import argparse
import filecmp
import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import torch
from torch.export import ExportedProgram

from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.resolve import resolve
from vidc.compiler.store.sources import source_digest
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.export import export_component
from vidc.exporters.onnx.functional import functional_program
from vidc.exporters.program import load_program
from vidc.plugins.ops.ring import PORTABLE

MODELS = {
    "demo": ("demo", ("vae.kind=wan",)),
    "longlive-1.3b, 2 layers": ("longlive-1.3b", ("model.layers=2",)),
}
ENGINES = {("demo", name) for name in ("text_kv", "denoise", "kv_update")}
"""Components of which an engine is tried; each takes minutes on a CPU."""
PRECISION = "bf16"
FORMS = ("exported", "portable")
PACKAGES = ("torch_tensorrt_rtx", "torch_tensorrt")
SOURCES = ("vidc.exporters.export", "vidc.exporters.onnx.functional")
"""Modules by whose sources, with all that they import, a row's graphs are told from older ones."""
ROOT = Path(__file__).parents[1]
SITE = Path(torch.__file__).parents[1]
STAND_INS: dict[str, Any] = {
    "torch.cuda.get_device_capability": lambda device=None: (8, 9),
    "torch.cuda.current_device": lambda: 0,
    "torch._C._CudaDeviceProperties": object,
}
"""Calls that Torch-TensorRT makes on import: a Tegra, the default device, an annotation."""


def unpack(wheels: Path, package: str, folder: Path) -> Path:
    """A folder that holds a package, and what it needs besides, for ``sys.path``."""
    (wheel,) = wheels.glob(f"{package}-[0-9]*.whl")
    for file in (wheel, *wheels.glob("dllist-*.whl")):
        with ZipFile(file) as archive:
            archive.extractall(folder)
    return folder


def refused_import(folder: Path | None = None) -> str | None:
    """Returns the error of importing the package in a process of its own; None if it imports.

    The package is the one in a folder, or else the installed one.
    """
    path = os.pathsep.join([*([str(folder)] if folder else []), *sys.path])
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import torch_tensorrt"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = anywhere(done.stderr.replace(str(folder or SITE), "SITE")).strip().splitlines()
    last = max((i for i, line in enumerate(told) if line.startswith("Traceback")), default=0)
    return "\n".join(told[last:][-6:]) if done.returncode else None


def import_registry(folder: Path) -> Any:
    """``torch_tensorrt`` without its libraries, and with stand-ins for a GPU."""
    (folder / "torch_tensorrt" / "lib").rename(folder / "lib")
    for name, value in STAND_INS.items():
        module, _, attribute = name.rpartition(".")
        setattr(import_module(module), attribute, value)
    sys.path.insert(0, str(folder))
    with redirect_stdout(sys.stderr):
        return import_module("torch_tensorrt")


def installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def different_converters(ours: Path, other: Path) -> list[str]:
    """Files in which the converters of two packages differ."""
    conversion = Path("torch_tensorrt", "dynamo", "conversion")
    names = {file.relative_to(root) for root in (ours, other)
             for file in (root / conversion).rglob("*.py")}  # fmt: skip
    return sorted(
        str(name)
        for name in names
        if not (ours / name).is_file()
        or not (other / name).is_file()
        or not filecmp.cmp(ours / name, other / name, shallow=False)
    )


def programs(component: ExportedComponent) -> Iterator[tuple[str, ExportedProgram]]:
    yield "exported", load_program(component.program)
    program = load_program(component.program)
    yield "portable", functional_program(program, component.signature, PORTABLE)[0]


def lowered(program: ExportedProgram) -> torch.fx.GraphModule:
    """Calls that Torch-TensorRT's own compilation looks up converters for."""
    from torch_tensorrt.dynamo._settings import CompilationSettings
    from torch_tensorrt.dynamo.lowering import (
        get_decompositions,
        post_lowering,
        pre_export_lowering,
    )

    settings = CompilationSettings()
    program = pre_export_lowering(program, settings)
    program = program.run_decompositions(get_decompositions())
    return post_lowering(program.module(), settings)


def covered(program: ExportedProgram) -> dict[str, Any]:
    """Calls with and without a converter that takes them, counted by operator."""
    from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS

    with_one, without = Counter[str](), Counter[str]()
    for node in lowered(program).graph.nodes:
        if node.op == "call_function":
            (with_one if node in DYNAMO_CONVERTERS else without)[_name(node)] += 1
    return {
        "covered": with_one.total(),
        "uncovered": without.total(),
        "covered_operators": dict(sorted(with_one.items())),
        "uncovered_operators": dict(sorted(without.items())),
    }


def engine(program: ExportedProgram) -> dict[str, Any]:
    """Bytes of the engine, or the message of the error instead of one."""
    from torch_tensorrt.dynamo import convert_exported_program_to_serialized_trt_engine

    inputs = [
        torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    found = convert_exported_program_to_serialized_trt_engine(
        program, arg_inputs=inputs, offload_module_to_cpu=True
    )
    return {"engine_bytes": len(found)}


def _name(node: torch.fx.Node) -> str:
    if node.target is torch.ops.higher_order.auto_functionalized_v2:
        return f"auto_functionalized_v2({node.args[0]})"
    return str(node.target)


def told(error: BaseException) -> str:
    """An exception as Python shows it, with the one that it came from."""
    lines = [line for part in _chain(error) for line in traceback.format_exception_only(part)]
    return anywhere("".join(lines)).strip()[:1500]


def anywhere(text: str) -> str:
    """A message without where things lie on this machine."""
    return text.replace(str(SITE), "SITE").replace(f"{ROOT}/", "")


def built_before(error: BaseException) -> dict[str, int]:
    """The size of the plan that was built before its loading failed."""
    for part in _chain(error):
        for frame, _ in traceback.walk_tb(part.__traceback__):
            plan = frame.f_locals.get("serialized_engine")
            if plan is not None:
                return {"plan_bytes_before_exception": plan.nbytes}
    return {}


def _chain(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [*_chain(error.__cause__), error]


def rows(model: str, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Parts of a model's components that are not known yet."""
    done = {(row["model"], row["component"], row["form"]) for row in known}
    sources = source_digest(SOURCES)
    preset, assignments = MODELS[model]
    sizes = resolve(preset, gpu="rtx4090", assignments=assignments, environ={}, engines=False).model
    for name, group in sizes.components.items():
        if {(model, name, form) for form in FORMS} <= done:
            continue
        with TemporaryDirectory() as folder:
            component = export_component(sizes.parts[group], PRECISION, name, Path(folder))
            for form, program in programs(component):
                if (model, name, form) in done:
                    continue
                row: dict[str, Any] = {
                    "model": model, "component": name, "form": form, "precision": PRECISION,
                    "sources": sources,
                }  # fmt: skip
                tried = form == "portable" and (model, name) in ENGINES
                for step in (covered, engine) if tried else (covered,):
                    try:
                        with redirect_stdout(sys.stderr):
                            row |= step(program)
                    except Exception as error:  # noqa: BLE001  what it says is the result
                        row[f"{step.__name__}_exception"] = told(error)
                        row |= built_before(error)
                yield row


def current(output: Path) -> list[dict[str, Any]]:
    """The rows of a file that the exporters' sources of today would give again."""
    found = json.loads(output.read_text())["rows"] if output.is_file() else []
    sources = source_digest(SOURCES)
    return [row for row in found if row.get("sources") == sources]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, help="the folder of the wheels")
    parser.add_argument("output", type=Path, help="the file to write, or to add to")
    parser.add_argument("--model", choices=MODELS, action="append")
    args = parser.parse_args()
    known = current(args.output)
    with TemporaryDirectory() as folder:
        sites = {name: unpack(args.wheels, name, Path(folder, name)) for name in PACKAGES}
        refusals = {name: refused_import(site) for name, site in sites.items()}
        different = different_converters(*sites.values())
        package = import_registry(sites["torch_tensorrt_rtx"])
        from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS

        document = {
            "schema": 1,
            "torch_tensorrt": package.__version__,
            "modelopt": installed("nvidia-modelopt"),
            "tensorrt_rtx": import_module("tensorrt_rtx").__version__,
            "import": refusals,
            "stand_ins": list(STAND_INS),
            "different_converters": different,
            "converters": len(DYNAMO_CONVERTERS.unique_targets()),
            "rows": known,
            "fingerprint": fingerprint(),
        }
        for model in args.model or MODELS:
            for row in rows(model, known):
                known.append(row)
                args.output.write_text(json.dumps(document, indent=1) + "\n")
                counts = f"{row.get('covered')} covered, {row.get('uncovered')} not"
                what = f"{row['model']} {row['component']} {row['form']}"
                print(f"{what}: {counts} {row.get('uncovered_operators', '')}", file=sys.stderr)
        args.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
