"""Stage ``export``: one component to an ExportedProgram and to ONNX, neither with weights."""

from dataclasses import dataclass
from functools import partial

from vidc.compiler.store.sources import class_modules
from vidc.compiler.store.stage import Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.part import Part


@dataclass(frozen=True)
class Export(Stage):
    """Writes what ``ExportedComponent`` describes.

    Attributes:
        part: whose component it is.
        precision: of its weights.
        component: its name.
    """

    part: Part
    precision: str
    component: str

    @property
    def name(self) -> str:
        """``export:<component>``."""
        return f"export:{self.component}"

    def key(self) -> Key:
        """Returns the key: of the part's settings, those that reach the component."""
        settings = self.part.export_settings(self.component)
        return Key(
            (__name__, *class_modules(type(self.part))),
            {"sizes": settings, "precision": self.precision},
            tools=partial(versions, "torch", "onnx", "onnxscript", "onnx-ir", *self.part.libraries),
        )

    def run(self, workspace: Workspace) -> None:
        """Exports the component."""
        from vidc.exporters.export import export_component

        export_component(self.part, self.precision, self.component, workspace.output)
