"""Stage ``quantise:<component>``: an exported program whose Linears are in 8 bits."""

from dataclasses import replace

from vidc.compiler.pipeline.stage import Workspace
from vidc.compiler.quantise.form import Form
from vidc.compiler.quantise.lowering import quantized_linears
from vidc.compiler.quantise.programs import quantize_program
from vidc.compiler.recipe.recipe import Recipe
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import meta_network


def run(
    workspace: Workspace,
    config: ModelConfig,
    group: str,
    precision: str,
    component: str,
    recipe: Recipe,
    form: Form,
) -> None:
    """Writes what ``ExportedComponent`` describes, but for the ONNX graph.

    Which calibration the scales come from changes nothing here: they are weights of the program.

    Args:
        workspace: where to, and the export.
        config: of the model.
        group: of the weights that the component runs on.
        precision: of what is not quantised.
        component: its name.
        recipe: what is quantised, and how.
        form: of the backend that compiles it.

    Raises:
        BuildError: what ``quantize_program`` raises.
    """
    exported = ExportedComponent.open(workspace.inputs[f"export:{component}"])
    made = replace(exported, folder=workspace.output)
    weights = meta_network(config, group, precision).state_dict()
    linears = quantized_linears(recipe, config, form)
    quantize_program(component, exported.program, group, weights, linears, made.program)
    made.write_signature()
