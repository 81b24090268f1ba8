"""Stage ``compile``: one exported component to an engine."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.backends import Means, backend
from vidc.compiler.config.targets import Target
from vidc.compiler.store.stage import Workspace
from vidc.exporters.artifact import ExportedComponent
from vidc.runtime.faults import gpu_faults
from vidc.runtime.strict import plain

ENGINE_NAME = "engine.json"
KERNEL = "kernel:"
"""Begins the names of stages that compile kernels."""


def run(
    workspace: Workspace,
    component: str,
    backend_name: str,
    target: Target,
    workspace_bytes: int | None = None,
    capabilities: Sequence[str] = (),
    version_compatible: bool = False,
) -> None:
    """Writes the engine's files and its description.

    Args:
        workspace: the stage's.
        component: its name.
        backend_name: what compiles it.
        target: what for.
        workspace_bytes: as ``Means`` has it.
        capabilities: the same.
        version_compatible: the same.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        VidcError: what the backend raises.
    """
    exported = ExportedComponent.open(_graph(workspace, component))
    kernels = {
        stage.removeprefix(KERNEL): folder
        for stage, folder in workspace.inputs.items()
        if stage.startswith(KERNEL)
    }
    chosen = backend(backend_name)
    device = "cpu" if chosen.anywhere(target) else target.device_type
    with gpu_faults(torch.device(device)):
        means = Means(
            workspace_bytes, tuple(capabilities), version_compatible, workspace.kept, workspace.note
        )
        engine = chosen.compile(exported, target, kernels, workspace.output, means)
    document = {
        "backend": backend_name,
        "loader": engine.loader,
        "version": engine.version,
        "files": list(engine.files),
        "signature": engine.signature.to_json(),
        "options": dict(engine.options),
        "requires": plain(engine.requires),
        "notes": list(engine.notes),
    }
    (workspace.output / ENGINE_NAME).write_text(json.dumps(document) + "\n")


def _graph(workspace: Workspace, component: str) -> Path:
    """The quantized graph of a component, where there is one."""
    quantized = workspace.inputs.get(f"quantize:{component}")
    return workspace.inputs[f"export:{component}"] if quantized is None else quantized


def read_engine(folder: Path) -> Mapping[str, Any]:
    """The description in the output of this stage, as in a manifest but for the precision."""
    document = _document(folder)
    del document["notes"]
    return document


def read_notes(folder: Path) -> tuple[str, ...]:
    """What the backend noted of the engine in the output of this stage."""
    return tuple(_document(folder)["notes"])


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / ENGINE_NAME).read_text())
    return document
