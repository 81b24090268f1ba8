"""Portable build folder: results of the stages that need no GPU.

A machine without the target's GPU begins a build and leaves this folder; ``handed_over`` finishes
the build on a machine with the GPU.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vidc.compiler.backends import backend
from vidc.compiler.build.build import Build
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import slot, stages
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import DigestMemory, Json, sha256_json
from vidc.compiler.store.publish import Finished, Kind, Publication, Publishing
from vidc.compiler.store.stage import Input, Key
from vidc.plugins.errors import UnavailableError, UsageError, VidcError
from vidc.runtime.document import FileEntry, check_path, read_document
from vidc.runtime.integrity import compare_names
from vidc.runtime.strict import plain, read

SCHEMA = 3
DOCUMENT_NAME = "build.json"
BEGIN_AGAIN = "finish the build with the vidc that began it, or begin it again with this one"


@dataclass(frozen=True)
class Components:
    """Components of the key of a stage's result, as recorded where the stage ran."""

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, str]
    sources: str
    tools: dict[str, str]
    target: dict[str, Any] | None

    @property
    def key(self) -> str:
        """Key of the result, as in the bundle's manifest."""
        return sha256_json(plain(self))


@dataclass(frozen=True)
class Output:
    """The files of a stage, by path in its own folder, and the components of its key."""

    components: Components
    files: dict[str, FileEntry]

    def __post_init__(self) -> None:
        for path in self.files:
            check_path(path)


@dataclass(frozen=True)
class Document:
    """``build.json``, the index of a portable build folder.

    Attributes:
        vidc: version that made it.
        settings: resolved settings, as in a manifest.
        origins: where each setting came from.
        stages: finished stages by name. Their folders lie beside the document.
    """

    vidc: str
    settings: dict[str, Any]
    origins: dict[str, str]
    stages: dict[str, Output]

    @property
    def files(self) -> dict[str, FileEntry]:
        """All files of the folder except the document, by path."""
        return {
            f"{stage_folder(name)}/{path}": entry
            for name, stage in self.stages.items()
            for path, entry in stage.files.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the document as plain JSON values."""
        return {"schema": SCHEMA, **plain(self)}

    def write(self, folder: Path) -> None:
        """Writes ``build.json``; equal documents give equal bytes."""
        text = json.dumps(self.to_json(), sort_keys=True, indent=2, allow_nan=False)
        (folder / DOCUMENT_NAME).write_text(text + "\n", encoding="utf-8", newline="\n")


def stage_folder(stage: str) -> str:
    """Returns the folder of a stage's output: ``golden/quantized`` for ``golden:quantized``."""
    return stage.replace(":", "/")


def read_portable(folder: Path) -> Document:
    """Returns the document of a folder, its fields checked; opens nothing else.

    Raises:
        UsageError: ``VIDC-PORTABLE-NOT``.
        UnavailableError: ``VIDC-PORTABLE-SCHEMA``.
        GateError: as ``read_manifest``.
    """
    try:
        schema, table = read_document(folder, DOCUMENT_NAME)
    except FileNotFoundError:
        raise UsageError(
            "VIDC-PORTABLE-NOT",
            f"{folder} is no portable build folder: it has no {DOCUMENT_NAME}",
            "give the folder that vidc build printed where the GPU was missing; "
            "a finished bundle needs no build",
        ) from None
    if schema != SCHEMA:
        raise UnavailableError(
            "VIDC-PORTABLE-SCHEMA",
            f"{folder} has schema {schema}; this vidc reads schema {SCHEMA}",
            BEGIN_AGAIN,
        )
    document: Document = read(table, Document, "build")
    return document


@dataclass(frozen=True)
class Handover(Publication):
    """Last step of a build without the GPU: writes the portable build folder.

    Attributes:
        settings: settings of the build.
        stages: names of the portable stages, whose results are copied to the folder.
    """

    name = "portable"
    kind = Kind(
        DOCUMENT_NAME,
        lambda document: (
            f"{stage_folder(name)}/{path}"
            for name, stage in document["stages"].items()
            for path in stage["files"]
        ),
    )

    settings: Settings
    stages: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The portable stages."""
        return tuple(Input(stage) for stage in self.stages)

    def key(self) -> Key:
        """Returns the key: all the settings."""
        return Key((), self.settings.to_json())

    def components(self, results: Mapping[str, Finished], digests: DigestMemory) -> dict[str, Json]:
        """Returns the components of the key; inputs are the keys of the results.

        Digests of their files, as for other steps, would not do: the folder records the keys too.
        """
        keys = {name: sha256_json(result.components) for name, result in results.items()}
        return {**super().components({}, digests), "inputs": keys}

    def document(self, results: Mapping[str, Finished]) -> Document:
        """Returns the document of finished stages."""
        return Document(
            vidc=version("vidc"),
            settings=self.settings.to_json(),
            origins=dict(self.settings.origins),
            stages={
                name: Output(
                    Components(**result.components),  # type: ignore[arg-type]
                    {path: FileEntry(f.size, f.sha256) for path, f in sorted(result.files.items())},
                )
                for name, result in results.items()
            },
        )

    def published(
        self, folder: Path, key: str, results: Mapping[str, Finished], digests: DigestMemory
    ) -> bool:
        """Returns True if the folder holds the document of these results, and their files."""
        try:
            found = read_portable(folder)
            compare_names(folder, DOCUMENT_NAME, found.files)
        except VidcError:
            return False
        files = {path: entry.sha256 for path, entry in found.files.items()}
        same = found.to_json() == self.document(results).to_json()
        return same and digests.match(folder, files)

    def run(self, workspace: Publishing) -> None:
        """Copies the results and writes the document."""
        workspace.note(f"copying what is done to {workspace.place}")
        for name, result in workspace.results.items():
            for path in result.files:
                copy = workspace.output / stage_folder(name) / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(result.path / path, copy)
        self.document(workspace.results).write(workspace.output)


def begun(settings: Settings, sources: Sources) -> Build:
    """Returns the portable part of a build, which writes a folder for another machine.

    The build can only be planned (``Build.refused``, ``VIDC-ENV-BACKEND``) if the backend compiles
    on any machine but is not available on this one.

    Raises:
        VidcError: what ``stages`` raises.
    """
    target, chosen = settings.target, backend(settings.backend)
    reason = chosen.unavailable(target) if chosen.cross_compiles(target) else None
    refused = None
    if reason is not None:
        refused = UnavailableError(
            "VIDC-ENV-BACKEND",
            f"backend {settings.backend} builds for {target.name} on any machine, but not on this "
            f"one: {reason}",
            "install it, or pass another --backend",
        )
    portable = [stage for stage in stages(settings, sources) if stage.portable]
    last = Handover(settings, tuple(stage.name for stage in portable))
    return Build(settings, portable, last, slot(settings), refused=refused)
