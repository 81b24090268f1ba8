"""One component's ONNX graph with the Linears of a recipe in 8 bits."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from vidc.compiler.quantise.count import asked_linears, require_asked
from vidc.compiler.quantise.form import GRAPH
from vidc.compiler.quantise.lowering import QuantizedLinear
from vidc.compiler.quantise.tensors import quantized_types
from vidc.exporters.checkpoint.write import Described, Placement, weight_layout
from vidc.exporters.onnx.quantize import found_gemms, quantize
from vidc.exporters.onnx.weights import external


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
    asked = asked_linears(model.graph.initializers, group, linears, GRAPH)
    layout = weight_layout(quantized_types(weights, linears))
    tensors = {f"{group}.{key}": _tensor(group, key, place) for key, place in layout.items()}
    quantize(model, asked, tensors)
    ir.save(model, path)
    # What is counted is what was written, not what was meant to be.
    written = ir.load(path)
    require_asked(str(model.graph.name), asked, found_gemms(written))
    _require_valid(ir.to_proto(written))


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


def _tensor(group: str, key: str, place: Placement) -> ir.ExternalTensor:
    return external(f"{group}.{key}", group, place)
