"""Stage ``quantize:<component>``: an exported component with a recipe's layers in 8 bits."""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.support import ONNX, QuantizationSupport
from vidc.compiler.store.sources import class_modules
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.families.family import Family


@dataclass(frozen=True)
class QuantizeComponent(Stage):
    """Writes what ``ExportedComponent`` describes, of the two graphs the one that the form names.

    Which calibration the scales come from changes nothing here: they are references into the
    weights file, or weights of the program.

    Attributes:
        model: whose quantized part the component is of.
        precision: of what is not quantized.
        component: its name.
        recipe: what is quantized, and how.
        form: of the backend that compiles it.
    """

    model: Family
    precision: str
    component: str
    recipe: Recipe
    form: QuantizationSupport

    @property
    def name(self) -> str:
        """``quantize:<component>``."""
        return f"quantize:{self.component}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The exported component."""
        return (Input(f"export:{self.component}"),)

    def key(self) -> Key:
        """Returns the key; the module that writes the form is named in it."""
        libraries = ("onnx", "onnxscript", "onnx-ir") if self.form == ONNX else ()
        return Key(
            (__name__, self.form.writer, *class_modules(type(self.model))),
            {
                "sizes": self.model.quantized_part.config.to_json(),
                "precision": self.precision,
                "rules": self.recipe.rules(),
            },
            tools=partial(versions, "torch", *libraries),
        )

    def run(self, workspace: Workspace) -> None:
        """Quantizes the component.

        Raises:
            BuildError: what ``write`` of the form's module raises.
        """
        from vidc.compiler.quantize.attention import quantized_attention
        from vidc.compiler.quantize.lowering import quantized_linears
        from vidc.exporters.artifact import ExportedComponent

        part = self.model.quantized_part
        exported = ExportedComponent.open(workspace.inputs[f"export:{self.component}"])
        made = import_module(self.form.writer).write(
            exported,
            replace(exported, folder=workspace.output),
            part.group,
            part.network(self.precision).state_dict(),
            quantized_linears(self.recipe, self.model, self.form),
            quantized_attention(self.recipe, self.model, self.form),
        )
        made.write_signature()
