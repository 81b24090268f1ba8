"""Stage ``compile``: compiles one exported component to an engine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.compiler.backends import Backend, CompileOptions, backend
from vidc.compiler.config.targets import Target
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.runtime.strict import plain

ENGINE_NAME = "engine.json"


@dataclass(frozen=True)
class Compile(Stage):
    """Writes an engine's files and its description.

    Attributes:
        component: name of the component.
        precision: precision of the weights group that the component belongs to.
        graph: name of the stage that exported the component.
        kernels: names of the stages that compile kernels, by kernel; the component may call these.
        backend: name of the backend.
        target: the device to compile for.
        limits: fields of ``CompileOptions`` that the configuration sets, and their values.
    """

    component: str
    precision: str
    graph: str
    kernels: Mapping[str, str]
    backend: str
    target: Target
    limits: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``compile:<component>``."""
        return f"compile:{self.component}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The graph, and the kernels it may call."""
        return (Input(self.graph), *(Input(stage) for stage in self.kernels.values()))

    @property
    def portable(self) -> bool:
        """True if the backend compiles for a GPU on any machine."""
        return self.target.is_gpu and self._backend.cross_compiles(self.target)

    @property
    def _backend(self) -> Backend:
        return backend(self.backend)

    def key(self) -> Key:
        """Returns the key; the backend's module is named in it."""
        return Key(
            (__name__, f"vidc.compiler.backends.{self.backend}.backend"),
            {"precision": self.precision, **self.limits},
            tools=lambda: self._backend.tools(self.target),
            target=self.target.to_json(),
        )

    def run(self, workspace: Workspace) -> None:
        """Compiles the engine.

        Raises:
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
            VidcError: what the backend raises.
        """
        import torch

        from vidc.exporters.artifact import ExportedComponent
        from vidc.runtime.faults import gpu_faults

        exported = ExportedComponent.open(workspace.inputs[self.graph])
        kernels = {name: workspace.inputs[stage] for name, stage in self.kernels.items()}
        limits = {**self.limits, "capabilities": tuple(self.limits.get("capabilities", ()))}
        options = CompileOptions(cache_folder=workspace.kept, note=workspace.note, **limits)
        cross = self._backend.cross_compiles(self.target)
        with gpu_faults(torch.device("cpu" if cross else self.target.device_type)):
            engine = self._backend.compile(
                exported, self.target, kernels, workspace.output, options
            )
        document = {
            "backend": self.backend,
            "loader": engine.loader,
            "version": engine.version,
            "files": list(engine.files),
            "signature": engine.signature.to_json(),
            "options": dict(engine.options),
            "requires": plain(engine.requires),
            "notes": list(engine.notes),
        }
        (workspace.output / ENGINE_NAME).write_text(json.dumps(document) + "\n")


def read_engine(folder: Path) -> Mapping[str, Any]:
    """Returns the description in a result of this stage, as in a manifest without the precision."""
    document = _document(folder)
    del document["notes"]
    return document


def read_notes(folder: Path) -> tuple[str, ...]:
    """Returns the backend's notes about the engine from a result of this stage."""
    return tuple(_document(folder)["notes"])


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / ENGINE_NAME).read_text())
    return document
