"""Quantization of a component's ONNX graph: linear layers and rings."""

from collections.abc import Mapping
from dataclasses import replace

import onnx
import onnx_ir as ir

from vidc.compiler.quantize.attention import QuantizedAttention, attention_types
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.programs import quantize_rings
from vidc.compiler.quantize.rings import (
    RingTensors,
    asked_rings,
    half,
    layer_of,
    require_rings,
)
from vidc.compiler.quantize.support import ONNX
from vidc.compiler.quantize.tensors import asked_linears, quantized_types, require_asked
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
    """Quantizes an exported component into the folder of ``made`` and checks the result.

    Args:
        exported: the component.
        made: the component in the folder to write to.
        group: its weights group.
        weights: the tensors of the group's file in high precision.
        linears: all quantized linear layers of the recipe.
        attentions: all quantized self-attentions of the recipe; their queries are not quantized.

    Returns:
        ``made`` with the states of its graph.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, ``VIDC-QUANTIZE-COUNT``.
        onnx.checker.ValidationError: the graph is not valid ONNX.
        onnx.shape_inference.InferenceError: its shapes or dtypes are inconsistent.
    """
    made, rings = _with_rings(exported, made, group, weights, attentions)
    model = ir.load(made.onnx if rings else exported.onnx)
    asked = asked_linears(model.graph.initializers, group, linears, ONNX)
    layout = weight_layout({**quantized_types(weights, linears), **attention_types(attentions)})
    tensors = {f"{group}.{key}": _tensor(group, key, place) for key, place in layout.items()}
    quantize(model, asked, tensors)
    ir.save(model, made.onnx)
    # The check reads the written file.
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
    """Exports the component's program again with quantized rings, if it has any."""
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
    """Returns the quantization of a graph's rings, by layer.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, keys and values differ in format.
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
    """Validates a graph whose external weights do not exist yet, by making them inputs."""
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
