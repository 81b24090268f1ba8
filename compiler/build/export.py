"""Stage ``export``: one component to an ExportedProgram and to ONNX, neither with weights."""

from dataclasses import asdict, dataclass
from functools import partial

from vidc.compiler.build.groups import LIBRARIES, group_sizes, text_len
from vidc.compiler.store.stage import Key, Stage, Workspace
from vidc.compiler.store.versions import versions
from vidc.exporters.config import ModelConfig

_STREAM_FIELDS: dict[str, tuple[str, ...]] = {
    "text_encoder": (),
    "text_kv": ("batch",),
    "vae": ("batch", "block", "height", "width"),
}
"""The stream's settings that reach a component, where not all do."""


@dataclass(frozen=True)
class Export(Stage):
    """Writes what ``ExportedComponent`` describes.

    Attributes:
        model: sizes of all its networks.
        group: of the weights that the component runs on.
        precision: of those.
        component: its name.
    """

    model: ModelConfig
    group: str
    precision: str
    component: str

    @property
    def name(self) -> str:
        """``export:<component>``."""
        return f"export:{self.component}"

    def key(self) -> Key:
        """Returns the key: of the model's settings, those that reach the component."""
        stream = asdict(self.model.stream)
        reached = _STREAM_FIELDS.get(self.group, tuple(stream))
        return Key(
            (__name__,),
            {
                "sizes": group_sizes(self.model, self.group),
                "stream": {f: stream[f] for f in _STREAM_FIELDS.get(self.component, reached)},
                "text_len": text_len(self.model, self.group),
                "precision": self.precision,
            },
            tools=partial(
                versions, "torch", "onnx", "onnxscript", "onnx-ir", *LIBRARIES[self.group]
            ),
        )

    def run(self, workspace: Workspace) -> None:
        """Exports the component."""
        from vidc.exporters.export import export_component

        export_component(self.model, self.group, self.precision, self.component, workspace.output)
