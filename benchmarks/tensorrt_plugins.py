"""Builds components with vidc's plugins for TensorRT-RTX, on a CPU, and reads the plans.

    python benchmarks/tensorrt_plugins.py --plugins FOLDER \
        > benchmarks/results/tensorrt-rtx-plugins.json
    python benchmarks/tensorrt_plugins.py --plugins FOLDER --whole \
        > benchmarks/results/tensorrt-rtx-plugins-longlive.json

``FOLDER`` has ``libvidc_plugins.so``. The first command takes components of a small model, each in
a plan for every GPU architecture of its precision; the second one ``denoise`` of the whole
``longlive-1.3b`` for 8.9. A row names the plugins in the plan and the rings that it updates in
place. No engine runs.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidc.compiler.backends import CompileOptions
from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.bench.usage import peak_rss_bytes
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.modules import quantized_components
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.export import export_component
from vidc.plugins import loading
from vidc.plugins.errors import VidcError
from vidc.plugins.signature import state_output

TARGET = targets()["rtx4090"]
SMALL = (
    "model.layers=2", "model.dim=128", "model.heads=2", "model.ffn_dim=64",
    "stream.height=16", "stream.width=32",
)  # fmt: skip
COMPONENTS = ("denoise", "kv_update", "recache_6")
FORMS = (
    ("fp16", None, 8, "auto"),
    ("bf16", None, 8, "auto"),
    ("fp16", "int8-attention", 24, "auto"),
    ("bf16", "fp8", 24, "all"),
    ("fp16", "kv-int8", 8, "auto"),
    ("bf16", "kv-fp8", 8, "auto"),
)
"""Precision, recipe, window in latent frames and setting ``tensorrt.plugins``."""
CAPABILITIES = ("7.5", "8.6", "8.9", "12.0")
SINCE = {"bf16": 8.0, "fp8": 8.9}
"""First compute capability of a precision."""
WHOLE = (("bf16", None), ("bf16", "fp8"))


@dataclass(frozen=True)
class Case:
    """A plan to build."""

    model: str
    component: str
    precision: str
    recipe: str | None
    window: int | None
    setting: str
    capabilities: tuple[str, ...]


def cases(whole: bool, components: Sequence[str]) -> list[Case]:
    if whole:
        return [
            Case("longlive-1.3b", "denoise", precision, recipe, None, "all", ("8.9",))
            for precision, recipe in WHOLE
        ]
    return [
        Case("tiny", component, precision, recipe, window, setting, served(precision, recipe))
        for precision, recipe, window, setting in FORMS
        for component in components
    ]


def served(precision: str, recipe: str | None) -> tuple[str, ...]:
    """The compute capabilities that have a precision."""
    first = SINCE.get("fp8" if "fp8" in str(recipe) else precision, 0)
    return tuple(each for each in CAPABILITIES if float(each) >= first)


def exported(case: Case, folder: Path) -> ExportedComponent:
    sizes = () if case.window is None else (*SMALL, f"stream.window={case.window}")
    model = resolve(case.model, assignments=sizes, environ={}, engines=False).model
    part, quantize = model.parts[model.components[case.component]], None
    if case.recipe is not None:
        support = backend.quantization(TARGET)
        formats = supported_formats(load_recipe(case.recipe), model, support)
        quantize = partial(quantized_components, part, formats)
    return export_component(part, case.precision, case.component, folder, quantize, operators=None)


def build(plugins: Path, case: Case) -> dict[str, Any]:
    """A row: what was built, how long it took and the most memory of the process."""
    loading.files = lambda package: plugins
    if (fault := loading.tensorrt_library_error()) is not None:
        raise fault
    row = asdict(case)
    with TemporaryDirectory() as temporary:
        source, output = Path(temporary, "export"), Path(temporary, "engine")
        source.mkdir()
        output.mkdir()
        started = time.perf_counter()
        try:
            component = exported(case, source)
            between = time.perf_counter()
            options = CompileOptions(plugins=case.setting, capabilities=case.capabilities)
            engine = backend.compile(component, TARGET, {}, output, options)
        except VidcError as error:
            return row | {"built": False, "error": str(error)}
        ended = time.perf_counter()
        file = output / engine.files[0]
        found, plan = inspect_plan(file), file.read_bytes()
        assert found.network is not None
        assert found.engine is not None
        rings = [s.name for s in engine.signature.states if s.name.startswith("ring.")]
        aliased = [r for r in rings if found.engine.updates_in_place(r, state_output(r))]
        return row | {
            "built": True,
            "export_s": between - started,
            "build_s": ended - between,
            "peak_bytes": peak_rss_bytes(),
            "plan_bytes": len(plan),
            "architectures": found.plan.architectures,
            "plugins": dict(Counter(found.network.plugins.values())),
            "names_in_plan": [p for p in engine.options["plugins"] if p.encode() in plan],
            "rings": len(rings),
            "aliased": len(aliased),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=Path, required=True, help="folder of the library")
    parser.add_argument("--component", action="append", choices=COMPONENTS, help="only this one")
    parser.add_argument("--whole", action="store_true", help="denoise of longlive-1.3b")
    args = parser.parse_args()
    chosen = cases(args.whole, args.component or COMPONENTS)
    rows = []
    # A process for each: the peak of its memory is that of one build.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(partial(build, args.plugins.resolve()), chosen):
            rows.append(row)
            what = f"{row['component']} {row['recipe'] or row['precision']} {row['setting']}"
            print(f"{what}: {row.get('error') or row['build_s']}", file=sys.stderr)
    json.dump({"schema": 1, "rows": rows, "fingerprint": fingerprint()}, sys.stdout, indent=1)
    print()
    sys.exit(not all(row["built"] and row["aliased"] == row["rings"] for row in rows))


if __name__ == "__main__":
    main()
