"""Backend ``tensorrt``: TensorRT or TensorRT-RTX plans that take the bundle's weights as inputs."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vidc.compiler.backends import DEFAULT_OPTIONS, Backend, CompiledEngine, CompileOptions
from vidc.compiler.backends.tensorrt.engine_layers import ENGINE, EngineLayers
from vidc.compiler.backends.tensorrt.plan import LAYERS, eight_bit_matmuls
from vidc.compiler.backends.tensorrt.product import (
    Product,
    convolution_form,
    product_for,
    unsupported_reason,
)
from vidc.compiler.config.schema import EIGHT_BITS
from vidc.compiler.config.targets import Target, gpu_unavailable
from vidc.compiler.quantize.support import TENSORRT, QuantizationSupport
from vidc.compiler.store.sources import versions
from vidc.exporters.artifact import ExportedComponent
from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.runtime.manifest import PORTABLE
from vidc.runtime.strict import plain

NAME = "tensorrt"
FOLDER = "engines/tensorrt"


class TensorRtBackend(Backend):
    """Builds plans with the product, TensorRT or TensorRT-RTX, that the target names."""

    def quantization(self, target: Target) -> QuantizationSupport:
        """Returns the support of networks with Q/DQ."""
        return TENSORRT

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns fp32, fp16 and int8, plus bf16 and fp8 if the GPU supports them."""
        found = {"fp32", "fp16", "bf16", *EIGHT_BITS} if product_for(target) is not None else set()
        return frozenset(found) & frozenset(target.precisions)

    def tools(self, target: Target) -> Mapping[str, str]:
        """Returns the product and the packages that translate programs to ONNX."""
        product = _product(target)
        found = versions("torch", "onnx", "onnxscript", "onnx-ir")
        found |= {product.name: product.version() or "none"}
        # The ABI, not the version: plans call the library's plugins but hold no code of them.
        there = loading.tensorrt_library_error() is None
        return found | {loading.TENSORRT_LIBRARY: f"ABI {PLUGIN_ABI}" if there else "none"}

    def cross_compiles(self, target: Target) -> bool:
        """Returns True for TensorRT-RTX."""
        return _product(target).cross_compiles

    def unavailable(self, target: Target) -> str | None:
        """Returns None if the target's product is installed and, for TensorRT, its GPU is here."""
        product = product_for(target)
        if product is None:
            return unsupported_reason(target)
        if product.version() is None:
            return f"{product.title} is not installed: {product.install}"
        return None if product.cross_compiles else gpu_unavailable(target)

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        options: CompileOptions = DEFAULT_OPTIONS,
    ) -> CompiledEngine:
        """Builds the component's plan, with descriptions of its layers and of its network.

        Raises:
            UnavailableError: ``VIDC-ENV-TENSORRT``; as ``choose_plugins``.
            BuildError: ``VIDC-EXPORT-LINT``, ``VIDC-TENSORRT-PLUGIN``, ``VIDC-TENSORRT-PARSE``,
                ``VIDC-TENSORRT-BUILD``, ``VIDC-TENSORRT-MEMORY``, ``VIDC-QUANTIZE-COUNT``.
        """
        from vidc.compiler.backends.native_graph import write_graph
        from vidc.compiler.backends.tensorrt.build import build_plan
        from vidc.compiler.backends.tensorrt.built_layers import built_layers
        from vidc.compiler.backends.tensorrt.network import describe_network, parse
        from vidc.compiler.backends.tensorrt.plugins import choose_plugins
        from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED

        product = _product(target)
        product.module()  # Fails before a minute of translation.
        use = choose_plugins(
            component.name, component.signature, component.aligned, product, options
        )
        with TemporaryDirectory() as folder:
            handled = (PADDED_KEYS, *UNFUSED)
            form = convolution_form(product, target, options.capabilities)
            graph = write_graph(component, product.name, Path(folder), handled, use, form)
            network = parse(component.name, graph, product)
        plan = build_plan(component.name, network, product, target, options)
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
                **({"version_compatible": True} if options.version_compatible else {}),
                **({"plugins": sorted(set(graph.plugins.values()))} if graph.plugins else {}),
            },
            requires=replace(PORTABLE, compute_capabilities=options.capabilities),
            notes=(
                *(f"{component.name}: {note}" for note in (*use.notes, *graph.notes)),
                *_notes(
                    component.name, description, _quantized_matmul_names(plan, description, layers)
                ),
                *_unknown_layers_note(component.name, product, layers),
            ),
        )


def _quantized_matmul_names(
    plan: bytes, description: Mapping[str, Any], layers: EngineLayers | None
) -> Collection[str] | None:
    """Returns the names of the matmuls that a plan computes in 8 bits, None if unknown."""
    found = eight_bit_matmuls(plan)
    if found is not None or layers is None:
        return found
    return [p["name"] for p in description["quantized"] if layers.in_8_bits(p["name"])]


def _notes(
    component: str, description: Mapping[str, Any], products: Collection[str] | None
) -> tuple[str, ...]:
    """Returns a note about matmuls that should run in 8 bits and do not."""
    meant = [product for product in description["quantized"] if product["computes"]]
    apart = [] if products is None else [p for p in meant if p["name"] not in products]
    if not apart:
        return ()
    return (
        f"{component}: {len(apart)} of {len(meant)} quantized matmuls run in high precision, as "
        f"their Q/DQ did not fuse: `vidc inspect` lists them, {apart[0]['weight']} first",
    )


def _unknown_layers_note(
    component: str, product: Product, layers: EngineLayers | None
) -> tuple[str, ...]:
    """Returns a note if the layers of a plan are unknown."""
    if layers is not None:
        return ()
    return (
        f"{component}: {product.title} did not report the plan's layers: `vidc inspect` lists "
        "those of the network",
    )


def _product(target: Target) -> Product:
    product = product_for(target)
    if product is None:
        raise ValueError(f"no product of TensorRT's builds for {target.name}")
    return product


backend = TensorRtBackend()
