"""Stage ``quantize:<component>``: an exported component with a recipe's layers in 8 bits."""

from dataclasses import replace
from importlib import import_module

from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.attention import quantized_attention
from vidc.compiler.quantize.form import Form
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.store.stage import Workspace
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
    """Writes what ``ExportedComponent`` describes, of the two graphs the one that the form names.

    Which calibration the scales come from changes nothing here: they are references into the
    weights file, or weights of the program.

    Args:
        workspace: where to, and the export.
        config: of the model.
        group: of the weights that the component runs on.
        precision: of what is not quantized.
        component: its name.
        recipe: what is quantized, and how.
        form: of the backend that compiles it.

    Raises:
        BuildError: what ``write`` of the form's module raises.
    """
    exported = ExportedComponent.open(workspace.inputs[f"export:{component}"])
    made = import_module(form.writer).write(
        exported,
        replace(exported, folder=workspace.output),
        group,
        meta_network(config, group, precision).state_dict(),
        quantized_linears(recipe, config, form),
        quantized_attention(recipe, config, form),
    )
    made.write_signature()
