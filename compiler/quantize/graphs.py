"""One component's ONNX graph with the Linears and rings of a recipe in 8 bits."""

from collections.abc import Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from vidc.compiler.quantize.attention import QuantizedAttention, attention_types
from vidc.compiler.quantize.count import asked_linears, require_asked
from vidc.compiler.quantize.form import GRAPH
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.programs import quantize_rings
from vidc.compiler.quantize.rings import (
    RingTensors,
    asked_rings,
    half,
    layer_of,
    require_rings,
)
from vidc.compiler.quantize.tensors import quantized_types
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.write import Described, Placement, weight_layout
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.quantize import found_gemms, quantize
from vidc.exporters.onnx.stored import STORED, StoredState, found_stored
from vidc.exporters.onnx.weights import external
from vidc.exporters.program import load_program
from vidc.plugins.ops.ring import PORTABLE


def write(
    exported: ExportedComponent,
    made: ExportedComponent,
    group: str,
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    attentions: Mapping[str, QuantizedAttention],
) -> ExportedComponent:
    """Writes the quantized form of an exported graph, which refers to the quantized weights.

    Args:
        exported: the component.
        made: it, in the folder to write to.
        group: of its weights.
        weights: the tensors of the group's file in high precision.
        linears: all of the recipe's.
        attentions: all of the recipe's; none computes in 8 bits.

    Returns:
        ``made`` with the states that its graph has.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, ``VIDC-QUANTIZE-COUNT``.
        onnx.checker.ValidationError: the graph is no valid ONNX.
        onnx.shape_inference.InferenceError: shapes or dtypes in it contradict each other.
    """
    made, rings = _with_rings(exported, made, group, weights, attentions)
    model = ir.load(made.onnx if rings else exported.onnx)
    asked = asked_linears(model.graph.initializers, group, linears, GRAPH)
    layout = weight_layout({**quantized_types(weights, linears), **attention_types(attentions)})
    tensors = {f"{group}.{key}": _tensor(group, key, place) for key, place in layout.items()}
    quantize(model, asked, tensors)
    ir.save(model, made.onnx)
    # What is counted is what was written, not what was meant to be.
    written = ir.load(made.onnx)
    states, of_rings = found_stored(written, made.signature)
    require_asked(made.name, asked, found_gemms(written, of_rings))
    require_rings(made.name, rings, found_graph_rings(states))
    _require_valid(ir.to_proto(written))
    return made


def _with_rings(
    exported: ExportedComponent,
    made: ExportedComponent,
    group: str,
    weights: Mapping[str, Described],
    attentions: Mapping[str, QuantizedAttention],
) -> tuple[ExportedComponent, Mapping[str, RingTensors]]:
    """Translates the component's program once more, with its rings in 8 bits, if it has any."""
    if not attentions:
        return made, {}
    program = load_program(exported.program)
    rings = asked_rings(program, exported.signature, group, attentions)
    if not rings:
        return made, {}
    signature = quantize_rings(program, exported.signature, group, rings, attentions)
    layout = weight_layout({**weights, **attention_types(attentions)})
    operators = {**PORTABLE, **STORED}
    export_onnx(made.name, program, signature, {group: layout}, made.onnx, operators)
    return replace(made, signature=signature), rings


def found_graph_rings(states: Mapping[str, StoredState]) -> dict[str, RingTensors]:
    """The rings in 8 bits of a graph, by layer.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, keys and values are not both in the same.
    """
    parts: dict[str, dict[str, StoredState]] = {}
    for name, state in states.items():
        place = layer_of(name)
        assert place is not None
        parts.setdefault(place[0], {})[place[1]] = state
    found = {}
    for layer, ring in parts.items():
        keys, values = ring.get("k"), ring.get("v")
        if keys is None or values is None or values.mean or keys.dtype != values.dtype:
            raise half(layer)
        found[layer] = RingTensors(
            keys.scale, values.scale, keys.mean, keys.dtype, attends=False, stored=True
        )
    return found


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
