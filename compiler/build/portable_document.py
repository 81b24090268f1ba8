"""``build.json``: what a portable build folder holds, and of which build."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import Json, sha256_json
from vidc.compiler.store.publish import Kind
from vidc.compiler.store.record import File
from vidc.runtime.manifest import FileEntry, check_path
from vidc.runtime.strict import plain

SCHEMA = 1
DOCUMENT_NAME = "build.json"


@dataclass(frozen=True)
class Components:
    """All that the key of a stage's result was made of where it ran."""

    stage: str
    config: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, str]
    sources: str
    tools: dict[str, str]
    target: dict[str, Any] | None

    @property
    def key(self) -> str:
        """Of the result, as the manifest of the bundle names it."""
        return sha256_json(plain(self))


@dataclass(frozen=True)
class Output:
    """What a stage wrote, by path in its own folder, and what its key was made of."""

    components: Components
    files: dict[str, FileEntry]

    def __post_init__(self) -> None:
        for path in self.files:
            check_path(path)


@dataclass(frozen=True)
class Document:
    """What a portable build folder is.

    Attributes:
        vidc: version that made it.
        settings: resolved, as in a manifest.
        origins: where each setting came from.
        stages: what was done, by name. Their folders lie beside the document.
    """

    vidc: str
    settings: dict[str, Any]
    origins: dict[str, str]
    stages: dict[str, Output]

    @property
    def files(self) -> dict[str, FileEntry]:
        """Every file of the folder but the document, by its path there."""
        return {
            f"{stage_folder(name)}/{path}": entry
            for name, stage in self.stages.items()
            for path, entry in stage.files.items()
        }

    def to_json(self) -> dict[str, Any]:
        """The document as plain JSON values."""
        return {"schema": SCHEMA, **plain(self)}


def stage_folder(stage: str) -> str:
    """Where the output of a stage lies: ``export/denoise`` for ``export:denoise``."""
    return stage.replace(":", "/")


FOLDER = Kind(
    DOCUMENT_NAME,
    lambda document: (
        f"{stage_folder(name)}/{path}"
        for name, stage in document["stages"].items()
        for path in stage["files"]
    ),
)


class Finished(Protocol):
    """A stage's result, or the record of one."""

    @property
    def components(self) -> Mapping[str, Json]:
        """What its key is made of."""

    @property
    def files(self) -> Mapping[str, File]:
        """What it wrote."""


def make_document(settings: Settings, results: Mapping[str, Finished]) -> Document:
    """The document of finished stages."""
    return Document(
        vidc=version("vidc"),
        settings=settings.to_json(),
        origins=dict(settings.origins),
        stages={
            name: Output(
                Components(**result.components),  # type: ignore[arg-type]
                {path: FileEntry(f.size, f.sha256) for path, f in sorted(result.files.items())},
            )
            for name, result in results.items()
        },
    )


def write_document(document: Document, folder: Path) -> None:
    """Writes ``build.json``; equal documents give equal bytes."""
    text = json.dumps(document.to_json(), sort_keys=True, indent=2, allow_nan=False)
    (folder / DOCUMENT_NAME).write_text(text + "\n", encoding="utf-8", newline="\n")
