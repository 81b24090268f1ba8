"""One component's ONNX graph with the Linears of a recipe in 8 bits."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from vidc.compiler.quantise.lowering import QuantizedLinear
from vidc.compiler.quantise.tensors import (
    input_factor_name,
    input_scale_name,
    quantized_types,
    weight_name,
    weight_scale_name,
)
from vidc.exporters.checkpoint.write import Described, Placement, weight_layout
from vidc.exporters.onnx.quantize import GemmTensors, found_gemms, quantize
from vidc.exporters.onnx.weights import external
from vidc.plugins.errors import BuildError


def quantize_graph(
    source: Path,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    path: Path,
) -> None:
    """Writes the quantised form of an exported graph, which refers to the quantised weights.

    Args:
        source: the exported ``.onnx``.
        group: of its weights.
        weights: the tensors of the group's file in high precision.
        linears: all of the recipe's.
        path: of the file to write.

    Raises:
        BuildError: ``VIDC-QUANTISE-GRAPH``, ``VIDC-QUANTISE-COUNT``.
        onnx.checker.ValidationError: the graph is no valid ONNX.
        onnx.shape_inference.InferenceError: shapes or dtypes in it contradict each other.
    """
    model = ir.load(source)
    asked = asked_gemms(model, group, linears)
    layout = weight_layout(quantized_types(weights, linears))
    tensors = {f"{group}.{key}": _tensor(group, key, place) for key, place in layout.items()}
    quantize(model, list(asked.values()), tensors)
    ir.save(model, path)
    # What is counted is what was written, not what was meant to be.
    written = ir.load(path)
    require_asked(written, asked)
    _require_valid(ir.to_proto(written))


def asked_gemms(
    exported: ir.Model, group: str, linears: Mapping[str, QuantizedLinear]
) -> dict[str, GemmTensors]:
    """What a recipe asks of a component, by layer: of those Linears whose weights it reads."""
    return {
        name: _gemm(group, linear)
        for name, linear in linears.items()
        if f"{group}.{weight_name(name)}" in exported.graph.initializers
    }


def require_asked(model: ir.Model, asked: Mapping[str, GemmTensors]) -> None:
    """Refuses a graph whose quantised Linears are not those of the recipe.

    Raises:
        BuildError: ``VIDC-QUANTISE-COUNT`` with the component and the first layer;
            ``VIDC-QUANTISE-GRAPH``.
    """
    found = found_gemms(model)
    wanted = {gemm.weight: gemm for gemm in asked.values()}
    there = {gemm.weight: gemm for gemm in found}
    differ = [n for n in [*wanted, *there] if wanted.get(n) != there.get(n)]
    if differ or len(found) != len(there):
        first = differ[0] if differ else "a Linear that is there twice"
        raise BuildError(
            "VIDC-QUANTISE-COUNT",
            f"{model.graph.name}: the recipe asks for {_pairs(list(asked.values()))}, the graph "
            f"has {_pairs(found)}; the first difference is {first}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


def _require_valid(model: onnx.ModelProto) -> None:
    """Checks a graph whose weights are in no file yet: they take part as inputs."""
    apart = onnx.TensorProto.EXTERNAL
    stored = [t for t in model.graph.initializer if t.data_location == apart]
    kept = [t for t in model.graph.initializer if t.data_location != apart]
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in stored
    )
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.checker.check_model(model)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def _pairs(gemms: list[GemmTensors]) -> str:
    inputs = sum(gemm.input_scale is not None for gemm in gemms)
    return f"{len(gemms)} weights and {inputs} inputs of Linears in 8 bits"


def _gemm(group: str, linear: QuantizedLinear) -> GemmTensors:
    site = linear.site
    return GemmTensors(
        f"{group}.{weight_name(linear.name)}",
        f"{group}.{weight_scale_name(linear.name)}",
        None if site is None else f"{group}.{input_scale_name(site)}",
        None if site is None or not linear.format.smooth else f"{group}.{input_factor_name(site)}",
    )


def _tensor(group: str, key: str, place: Placement) -> ir.ExternalTensor:
    return external(f"{group}.{key}", group, place)
