"""Exports a component of a configured model to files."""

from pathlib import Path

from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint import weight_layout
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import components, meta_network
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.program import export_program, save_program


def export_component(
    config: ModelConfig, group: str, precision: str, name: str, folder: Path
) -> ExportedComponent:
    """Writes a component's graphs into ``folder``; no weights are needed, or made.

    Args:
        config: of the model.
        group: the weights group that the component runs on.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        name: the component's.
        folder: an empty one.
    """
    network = meta_network(config, group, precision)
    component = components(config, group, network, precision)[name]
    program = export_program(component)
    exported = ExportedComponent(name, folder, component.signature, component.aligned)
    save_program(program, exported.program)
    layout = weight_layout(network.state_dict())
    export_onnx(name, program, component.signature, {group: layout}, exported.onnx)
    exported.write_signature()
    return exported
