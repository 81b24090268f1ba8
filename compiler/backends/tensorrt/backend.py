"""Backend ``tensorrt``: plans of TensorRT or TensorRT-RTX, which read the bundle's own weights."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidc.compiler.backends import WITHOUT_LIMITS, CompiledEngine, Means
from vidc.compiler.backends.tensorrt.engine_layers import ENGINE, EngineLayers
from vidc.compiler.backends.tensorrt.plan import LAYERS, eight_bit_products
from vidc.compiler.backends.tensorrt.product import Product, product_for, unserved
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.schema import EIGHT_BITS
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.form import NETWORK, Form
from vidc.compiler.store.versions import versions
from vidc.exporters.artifact import ExportedComponent
from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.runtime.manifest import PORTABLE
from vidc.runtime.strict import plain

NAME = "tensorrt"
FOLDER = "engines/tensorrt"


class TensorRtBackend:
    """One implementation over two products: the target says which."""

    def form(self, target: Target) -> Form:
        """Programs whose Linears become Q and DQ."""
        return NETWORK

    def precisions(self, target: Target) -> frozenset[str]:
        """fp32, fp16 and int8; bf16 and fp8 where the GPU has them."""
        found = {"fp32", "fp16", "bf16", *EIGHT_BITS} if product_for(target) is not None else set()
        return frozenset(found) & frozenset(target.precisions)

    def kernels(self, target: Target) -> tuple[str, ...]:
        """None: its attention is TensorRT's."""
        return ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """The product, and what translates programs for it."""
        product = _product(target)
        found = versions("torch", "onnx", "onnxscript", "onnx-ir")
        found |= {product.name: product.version() or "none"}
        if not product.plugins:
            return found
        # Not the library itself: plans call its plugins, and hold none of their code.
        there = loading.tensorrt_library_error() is None
        return found | {loading.TENSORRT_LIBRARY: f"ABI {PLUGIN_ABI}" if there else "none"}

    def anywhere(self, target: Target) -> bool:
        """TensorRT-RTX builds without a GPU."""
        return _product(target).anywhere

    def unavailable(self, target: Target) -> str | None:
        """Needs the target's product, and TensorRT its GPU."""
        product = product_for(target)
        if product is None:
            return unserved(target)
        if product.version() is None:
            return f"{product.title} is not installed: {product.install}"
        return None if product.anywhere else absent(target)

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        means: Means = WITHOUT_LIMITS,
    ) -> CompiledEngine:
        """Builds the component's plan, and describes its layers and the network it was built from.

        Raises:
            UnavailableError: ``VIDC-ENV-TENSORRT``, ``VIDC-KERNEL-LIBRARY``, ``VIDC-KERNEL-ABI``.
            BuildError: ``VIDC-EXPORT-LINT``, ``VIDC-TENSORRT-PARSE``, ``VIDC-TENSORRT-BUILD``,
                ``VIDC-TENSORRT-MEMORY``, ``VIDC-QUANTIZE-COUNT``.
        """
        from vidc.compiler.backends.native_graph import write_graph
        from vidc.compiler.backends.tensorrt.build import build_plan
        from vidc.compiler.backends.tensorrt.built_layers import built_layers
        from vidc.compiler.backends.tensorrt.description import describe_network
        from vidc.compiler.backends.tensorrt.network import parse
        from vidc.compiler.backends.tensorrt.plugins import plugin_ring
        from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED

        product = _product(target)
        product.module()  # Before a minute of translation.
        plugins, left = plugin_ring(
            component.signature, component.aligned, product, means.version_compatible
        )
        with TemporaryDirectory() as folder:
            handled = (PADDED_KEYS, *UNFUSED)
            graph = write_graph(component, product.name, Path(folder), handled, plugins)
            network = parse(component.name, graph, product, plugins)
        plan = build_plan(component.name, network, product, target, means)
        file = output / FOLDER / f"{component.name}.plan"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(plan)
        description = describe_network(network, product)
        layers = built_layers(plan, network.log, product)
        beside = {LAYERS: json.dumps(description, indent=1, sort_keys=True)}
        if layers is not None:
            beside[ENGINE] = json.dumps(plain(layers), sort_keys=True)
        for ending, text in beside.items():
            file.with_suffix(ending).write_text(f"{text}\n")
        files = (file, *map(file.with_suffix, beside))
        return CompiledEngine(
            loader=NAME,
            version=product.version() or "",
            files=tuple(path.relative_to(output).as_posix() for path in files),
            signature=graph.signature,
            options={
                "product": product.name,
                **({"version_compatible": True} if means.version_compatible else {}),
                **({"plugins": True} if plugins else {}),
            },
            requires=replace(PORTABLE, compute_capabilities=means.capabilities),
            notes=(
                *(f"{component.name}: {note}" for note in (*left, *graph.notes)),
                *_notes(component.name, description, _in_8_bits(plan, description, layers)),
                *_untold(component.name, product, layers),
            ),
        )


def _in_8_bits(
    plan: bytes, description: Mapping[str, Any], layers: EngineLayers | None
) -> Collection[str] | None:
    """The products that a plan computes in 8 bits, None where neither it nor its layers say."""
    found = eight_bit_products(plan)
    if found is not None or layers is None:
        return found
    return [p["name"] for p in description["quantized"] if layers.in_8_bits(p["name"])]


def _notes(
    component: str, description: Mapping[str, Any], products: Collection[str] | None
) -> tuple[str, ...]:
    """Says how many products were meant to be computed in 8 bits, and are not."""
    meant = [product for product in description["quantized"] if product["computes"]]
    apart = [] if products is None else [p for p in meant if p["name"] not in products]
    if not apart:
        return ()
    return (
        f"{component}: {len(apart)} of {len(meant)} products are computed in high precision, as "
        f"their Q and DQ did not fuse: `vidc inspect` lists them, {apart[0]['weight']} first",
    )


def _untold(component: str, product: Product, layers: EngineLayers | None) -> tuple[str, ...]:
    """Says that nobody said the layers of a plan."""
    if layers is not None:
        return ()
    return (
        f"{component}: {product.title} did not say its plan's layers: `vidc inspect` has those of "
        "the network alone",
    )


def _product(target: Target) -> Product:
    product = product_for(target)
    if product is None:
        raise ValueError(f"no product of TensorRT's builds for {target.name}")
    return product


backend = TensorRtBackend()
