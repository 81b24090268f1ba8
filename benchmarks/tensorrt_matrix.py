"""Builds components with TensorRT-RTX, which needs no GPU, and inspects the plans.

    python benchmarks/tensorrt_matrix.py > benchmarks/results/tensorrt-rtx-matrix.json
    python benchmarks/tensorrt_matrix.py --whole > benchmarks/results/tensorrt-rtx-longlive.json

The first takes every component of ``demo`` and of ``longlive-1.3b`` with two of its layers, in both
16-bit types and for both targets that TensorRT-RTX builds for, and the transformer's components
also in FP8 and INT8 by the target's recipe. The second takes the components of the whole
``longlive-1.3b``. Plans hold no ranges, so there is no calibration. A row's ``wrong`` is empty if
the engine is as expected; the exit status is 1 if one is not. No engine runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.bench.usage import peak_rss_bytes
from vidc.compiler.config.quantization import default_recipe
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.schema import EIGHT_BITS
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import InspectedPlan, inspect_plan
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.modules import quantized_components
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.export import export_component
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.signature import Signature, state_output

MODELS = {
    "demo": ("demo", ("vae.kind=wan",)),
    "longlive-1.3b, 2 layers": ("longlive-1.3b", ("model.layers=2",)),
}
WHOLE = {"longlive-1.3b": ("longlive-1.3b", ())}
PRECISIONS = {"fp16": "half", "bf16": "bf16", "fp8": "bf16", "int8": "bf16"}
"""Names of the network's types; with 8 bits, of the layers in high precision."""
HIGH = "bf16"
"""Precision of an 8-bit network's layers in high precision."""
TARGETS = ("rtx4090", "rtx5090")
RING_COMPONENTS = ("denoise", "kv_update", "recache_")


@dataclass(frozen=True)
class Case:
    """One engine to build."""

    model: str
    component: str
    precision: str
    target: str


def config(model: str) -> CausalVideo:
    preset, assignments = (MODELS | WHOLE)[model]
    return resolve(preset, gpu="cpu", assignments=assignments, environ={}).model


def cases(models: dict[str, Any]) -> Iterator[Case]:
    for model in models:
        for component, group in config(model).components.items():
            for precision, target in product(PRECISIONS, TARGETS):
                # Recipes are about the transformer: the rest is what its 16-bit row says.
                if precision not in EIGHT_BITS or group == CausalVideo.quantized_group:
                    yield Case(model, component, precision, target)


def build(case: Case) -> dict[str, Any]:
    """A row: how long it took, the most memory of the process, and what the engine is."""
    sizes = config(case.model)
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        component = exported(case, sizes, Path(folder))
        between = time.perf_counter()
        signature, file = compiled(case, component, Path(folder))
        ended = time.perf_counter()
        found = inspect_plan(file)
        assert found.network is not None
        return asdict(case) | {
            "compute_capability": targets()[case.target].compute_capability,
            "export_s": between - started,
            "build_s": ended - between,
            "peak_bytes": peak_rss_bytes(),
            "plan_bytes": found.plan.bytes,
            "version": found.plan.version,
            "attentions": len(found.network.attentions),
            "fused": found.plan.fused_attentions,
            "products": len(found.network.quantized),
            "products_in_8_bits": len(found.plan.products or ()),
            "layers": found.network.layers,
            "wrong": wrong(case, sizes, signature, found, file.read_bytes()),
        }


def exported(case: Case, sizes: CausalVideo, folder: Path) -> ExportedComponent:
    """The component in the case's precision."""
    high = HIGH if case.precision in EIGHT_BITS else case.precision
    made = folder / "export"
    made.mkdir()
    part, quantize = sizes.parts[sizes.components[case.component]], None
    if case.precision in EIGHT_BITS:
        target = targets()[case.target]
        recipe = default_recipe(case.precision, target, type(sizes))
        assert recipe is not None
        formats = supported_formats(load_recipe(recipe), sizes, backend.quantization(target))
        quantize = partial(quantized_components, part, formats)
    return export_component(part, high, case.component, made, quantize, operators=None)


def compiled(case: Case, component: ExportedComponent, folder: Path) -> tuple[Signature, Path]:
    """The engine's signature, and its plan."""
    output = folder / "engine"
    output.mkdir()
    engine = backend.compile(component, targets()[case.target], {}, output)
    return engine.signature, output / engine.files[0]


def wrong(
    case: Case, sizes: CausalVideo, signature: Signature, found: InspectedPlan, plan: bytes
) -> list[str]:
    """Lists what is wrong with an engine."""
    network = found.network
    assert network is not None
    says = []
    capability = (targets()[case.target].compute_capability or "").replace(".", "")
    if found.plan.architectures != (f"sm{capability}",):
        says.append(f"it is for {found.plan.architectures}")
    names = [t.name for t in signature if t.reads] + [t.name for t in signature.outputs]
    names += [state_output(t.name) for t in signature.states if t.writes]
    # A plan has the length of a name before it: ``ring.k.0`` is not found within ``ring.k.0.out``.
    lengths = (len(name).to_bytes(8, "little") for name in names)
    stored = {name: length + name.encode() for name, length in zip(names, lengths, strict=True)}
    says += [f"it does not name {name}" for name, found in stored.items() if found not in plan]
    if not network.layers.get("convolution", {}) | network.layers.get("matrix_multiply", {}):
        says.append("it multiplies nothing")
    for kind in ("matrix_multiply", "convolution", "kv_cache_update"):
        if others := network.layers.get(kind, {}).keys() - {PRECISIONS[case.precision]}:
            says.append(f"{kind} in {', '.join(others)}")
    if case.component.startswith(RING_COMPONENTS):
        layers = sizes.transformer.layers
        # The clean pass ends with the last layer's keys and values.
        attending = layers if case.component == "denoise" else layers - 1
        updates = sum(network.layers.get("kv_cache_update", {}).values())
        if updates != 2 * layers:
            says.append(f"{updates} updates of a cache in place, not {2 * layers}")
        if len(network.attentions) != 2 * attending:
            says.append(f"{len(network.attentions)} attentions, not {2 * attending}")
        if sum(attention.reads_length for attention in network.attentions) != attending:
            says.append("not every attention over the ring reads its valid length")
        if found.plan.fused_attentions != len(network.attentions):
            says.append(f"{found.plan.fused_attentions} of {len(network.attentions)} fused")
        fused = found.fused or {}
        says += [f"{name} is not one kernel" for name, whole in fused.items() if not whole]
    return says + wrong_products(case, sizes, found)


def wrong_products(case: Case, sizes: CausalVideo, found: InspectedPlan) -> list[str]:
    """Lists layers of an engine whose number of bits is not the recipe's."""
    network = found.network
    assert network is not None
    products, pairs = expected_products(case, sizes.transformer.layers)
    says = []
    if [p.weights for p in network.quantized if p.weights == p.inputs] != products * [
        case.precision
    ]:
        says.append(f"{len(network.quantized)} Linears in 8 bits, not {products}")
    if sum(network.layers.get("quantize", {}).values()) != pairs:
        says.append(f"{network.layers.get('quantize')} pairs of Q and DQ, not {pairs}")
    if sum(network.layers.get("dequantize", {}).values()) != pairs + products:
        says.append(f"{network.layers.get('dequantize')} DQ, not {pairs + products}")
    if len(found.plan.products or ()) != products:
        says.append(f"{len(found.plan.products or ())} products computed in 8 bits")
    return says + [f"Q and DQ of {product.weight} did not fuse" for product in found.unfused]


def expected_products(case: Case, layers: int) -> tuple[int, int]:
    """Counts the Linears of a component that are in 8 bits, and the inputs that these read."""
    if case.precision not in EIGHT_BITS:
        return 0, 0
    if case.component == "text_kv":
        return 2 * layers, layers
    # Self-attention's queries, keys and values read one tensor; its output, cross-attention's
    # queries and output and the feed-forward's two read one each.
    products, pairs = 8 * layers, 6 * layers
    if case.component != "denoise":
        # The clean pass ends with the last layer's keys and values.
        products, pairs = products - 6, pairs - 5
    return products, pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="the whole of longlive-1.3b")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    models = WHOLE if args.whole else MODELS
    chosen = [
        case
        for case in cases(models)
        if not args.whole or (case.precision, case.target) == ("bf16", "rtx4090")
    ]
    rows = []
    # A process for each: the peak of its memory is that of one build.
    with ProcessPoolExecutor(args.workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(build, chosen):
            rows.append(row)
            what = f"{row['model']} {row['component']} {row['precision']} {row['target']}"
            print(f"{what}: {row['build_s']:.1f} s {row['wrong'] or 'as it should be'}",
                  file=sys.stderr)  # fmt: skip
    json.dump({"schema": 1, "rows": rows, "fingerprint": fingerprint()}, sys.stdout, indent=1)
    print()
    sys.exit(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
