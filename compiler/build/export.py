"""Stage ``export``: exports one component as ExportedProgram and ONNX graph, without weights."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vidc.compiler.store.sources import class_modules, versions
from vidc.compiler.store.stage import Key, Stage, Workspace
from vidc.exporters.part import Part

if TYPE_CHECKING:
    from vidc.compiler.quantize.apply import Quantization


@dataclass(frozen=True)
class Export(Stage):
    """Writes the files of an ``ExportedComponent``.

    The files do not depend on a calibration: scales are weights, which they do not contain.

    Attributes:
        part: part that has the component.
        precision: precision of the weights that are not quantized.
        component: name of the component.
        formats: formats of the quantized layers; None to quantize none.
        onnx: False to write the program only, for formats that ONNX graphs do not support.
    """

    part: Part
    precision: str
    component: str
    formats: "Quantization | None" = None
    onnx: bool = True

    @property
    def name(self) -> str:
        """``export:<component>``."""
        return f"export:{self.component}"

    def key(self) -> Key:
        """Returns the key, with only those settings of the part that affect the component."""
        settings = self.part.export_settings(self.component)
        libraries = ("onnx", "onnxscript", "onnx-ir") if self.onnx else ()
        return Key(
            (__name__, *class_modules(type(self.part))),
            {
                "sizes": settings,
                "precision": self.precision,
                "layers": {} if self.formats is None else self.formats.rules(),
                "onnx": self.onnx,
            },
            tools=partial(versions, "torch", *libraries, *self.part.libraries),
        )

    def run(self, workspace: Workspace) -> None:
        """Exports the component.

        Raises:
            BuildError: ``VIDC-QUANTIZE-GRAPH``, a layer cannot be quantized.
        """
        from vidc.compiler.quantize.modules import quantized_components
        from vidc.exporters.export import export_component
        from vidc.exporters.onnx.quantized import ONNXRUNTIME

        quantize = None
        if self.formats is not None:
            quantize = partial(quantized_components, self.part, self.formats)
        export_component(
            self.part, self.precision, self.component, workspace.output,
            quantize, ONNXRUNTIME if self.onnx else None,
        )  # fmt: skip
