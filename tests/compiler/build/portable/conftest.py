"""A portable build folder whose stages did not run: what reading one looks at is right."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vidc.compiler.build.handover import (
    DOCUMENT_NAME,
    Components,
    Document,
    Output,
    stage_folder,
)
from vidc.compiler.build.stages import stages
from vidc.compiler.config.resolve import Settings, resolve
from vidc.compiler.store.sources import source_digest
from vidc.compiler.store.versions import versions
from vidc.runtime.document import FileEntry

Edit = Callable[[Callable[[dict[str, Any]], object]], None]


@pytest.fixture(scope="session")
def settings() -> Settings:
    return resolve("tiny", gpu="cpu", environ={})


@pytest.fixture(scope="session")
def document(settings: Settings) -> Document:
    outputs = {}
    for stage in stages(settings, None):
        if not stage.portable:
            continue
        name, key = stage.name, stage.key()
        data = name.encode()
        outputs[name] = Output(
            Components(
                stage=name,
                config=json.loads(json.dumps(key.config)),
                inputs={},
                files={"checkpoint.a.pt": "0" * 64},
                sources=source_digest(key.entries),
                tools=versions("torch"),
                target=None,
            ),
            {"a/data": FileEntry(len(data), hashlib.sha256(data).hexdigest())},
        )
    return Document("0.1.0", settings.to_json(), dict(settings.origins), outputs)


def write_folder(document: Document, folder: Path) -> Path:
    for name in document.stages:
        file = folder / stage_folder(name) / "a" / "data"
        file.parent.mkdir(parents=True)
        file.write_bytes(name.encode())
    document.write(folder)
    return folder


@pytest.fixture
def folder(document: Document, tmp_path: Path) -> Path:
    return write_folder(document, tmp_path / "tiny.portable")


@pytest.fixture
def edit(folder: Path) -> Edit:
    """Changes ``build.json`` by a function of its JSON."""

    def change(function: Callable[[dict[str, Any]], object]) -> None:
        file = folder / DOCUMENT_NAME
        value = json.loads(file.read_text())
        function(value)
        file.write_text(json.dumps(value))

    return change
