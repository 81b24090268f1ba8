"""Stage ``export``: one component to an ExportedProgram and to ONNX, neither with weights."""

from vidc.compiler.store.stage import Workspace
from vidc.exporters.config import ModelConfig
from vidc.exporters.export import export_component


def run(
    workspace: Workspace, config: ModelConfig, group: str, precision: str, component: str
) -> None:
    """Writes what ``ExportedComponent`` describes."""
    export_component(config, group, precision, component, workspace.output)
