"""Stage ``quantise:<component>``: an exported ONNX graph with Q and DQ around its Linears."""

from dataclasses import replace

from vidc.compiler.pipeline.stage import Workspace
from vidc.compiler.quantise.form import Form
from vidc.compiler.quantise.graphs import quantize_graph
from vidc.compiler.quantise.lowering import quantized_linears
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
    """Writes what ``ExportedComponent`` describes, but for the program.

    The scales are references into the weights file: which calibration they come from changes
    nothing here.

    Args:
        workspace: where to, and the export.
        config: of the model.
        group: of the weights that the component runs on.
        precision: of what is not quantised.
        component: its name.
        recipe: what is quantised, and how.
        form: of the backend that compiles it.

    Raises:
        BuildError: what ``quantize_graph`` raises.
    """
    exported = ExportedComponent.open(workspace.inputs[f"export:{component}"])
    made = replace(exported, folder=workspace.output)
    weights = meta_network(config, group, precision).state_dict()
    linears = quantized_linears(recipe, config, form)
    quantize_graph(exported.onnx, group, weights, linears, made.onnx)
    made.write_signature()
