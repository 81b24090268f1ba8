"""Exports a component of a part to files."""

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import nn

from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.write import weight_layout
from vidc.exporters.component import Component
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.quantized import ONNXRUNTIME
from vidc.exporters.part import Part
from vidc.exporters.program import export_program, save_program


def export_component(
    part: Part,
    precision: str,
    name: str,
    folder: Path,
    quantize: Callable[[nn.Module], Mapping[str, Component]] | None = None,
    operators: Operators | None = ONNXRUNTIME,
) -> ExportedComponent:
    """Writes a component's graphs into ``folder``; no weights are needed, or made.

    Args:
        part: whose component it is.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        name: the component's.
        folder: an empty one.
        quantize: replaces layers of the network in place and returns its components; None to
            replace none.
        operators: ONNX forms of vidc's operators; None writes no ONNX.
    """
    network = part.network(precision)
    components = part.components(network) if quantize is None else quantize(network)
    component = components[name]
    program = export_program(component)
    exported = ExportedComponent(name, folder, component.signature, component.aligned)
    save_program(program, exported.program)
    if operators is not None:
        placements = {part.group: weight_layout(network.state_dict())}
        export_onnx(name, program, component.signature, placements, exported.onnx, operators)
    exported.write_signature()
    return exported
