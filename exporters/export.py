"""Exports a component of a part to files."""

from pathlib import Path

from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint import weight_layout
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.part import Part
from vidc.exporters.program import export_program, save_program


def export_component(part: Part, precision: str, name: str, folder: Path) -> ExportedComponent:
    """Writes a component's graphs into ``folder``; no weights are needed, or made.

    Args:
        part: whose component it is.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        name: the component's.
        folder: an empty one.
    """
    network = part.network(precision)
    component = part.components(network)[name]
    program = export_program(component)
    exported = ExportedComponent(name, folder, component.signature, component.aligned)
    save_program(program, exported.program)
    layout = weight_layout(network.state_dict())
    export_onnx(name, program, component.signature, {part.group: layout}, exported.onnx)
    exported.write_signature()
    return exported
