"""Export of a component's program to a portable ONNX file."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
import torch
from torch.export import ExportedProgram
from torch.fx.traceback import preserve_node_meta

from vidc.exporters.checkpoint.write import Placement
from vidc.exporters.onnx.functional import Operators, functional_program
from vidc.exporters.onnx.quantized import separate_zero_points
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.onnx.weights import refer_to_weights
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.ring import PORTABLE
from vidc.plugins.signature import Signature

OPSET = 24


def export_onnx(
    name: str,
    program: ExportedProgram,
    signature: Signature,
    placements: Mapping[str, Mapping[str, Placement]] | None,
    path: Path,
    operators: Operators = PORTABLE,
) -> None:
    """Writes a component as a graph of standard operators, without its weights.

    Inputs and outputs have the signature's names. Each weight is an initializer that refers into
    ``weights/<file>.safetensors`` beside the graph, or an input before the signature's. The same
    program and placements give the same bytes.

    Args:
        name: of the component.
        program: from ``export_program``.
        signature: of the component.
        placements: the ``weight_layout`` of each weights file, by its name without suffix; None
            leaves weights as inputs.
        path: the ``.onnx`` file to write.
        operators: the function that replaces each vidc operator.

    Raises:
        ValueError: a weight is in no file, or has another shape or dtype there.
        onnx.checker.ValidationError: the graph is not valid ONNX.
        onnx.shape_inference.InferenceError: the graph's shapes are inconsistent.
    """
    functional, inputs = functional_program(program, signature, operators)
    model = _translate(functional, inputs, signature).model
    model.graph.name = name
    simplify(model)
    separate_zero_points(model)
    model = _inferred(model)
    if placements is not None:
        refer_to_weights(model, frozenset(signature.graph_inputs()), placements)
    ir.save(model, path)


def translated_program(
    program: ExportedProgram, signature: Signature, operators: Operators = PORTABLE
) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Returns the program that ``export_onnx`` translates; PyTorch can run its portable form.

    A value has the same name in program and graph. Source lines in ``program`` are preserved.
    Arguments are as in ``export_onnx``.

    Returns:
        The program and the graph names of its inputs; its results are
        ``signature.graph_outputs()``.
    """
    with preserve_node_meta():
        functional, inputs = functional_program(program, signature, operators)
        exported = _translate(functional, inputs, signature).exported_program
    assert exported is not None
    return exported, inputs


def _translate(
    functional: ExportedProgram, inputs: tuple[str, ...], signature: Signature
) -> torch.onnx.ONNXProgram:
    with tracing():
        exported = torch.onnx.export(
            functional,
            opset_version=OPSET,
            input_names=inputs,
            output_names=signature.graph_outputs(),
            optimize=False,
            verbose=False,
        )
    assert exported is not None
    return exported


def _inferred(model: ir.Model) -> ir.Model:
    """Returns the checked model with inferred shapes; weights are still inputs without a file."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    return ir.from_proto(
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    )
