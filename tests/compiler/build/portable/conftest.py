"""A portable build folder whose stages did not run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from portable_folder import portable_document, write_folder

from vidc.compiler.build.handover import DOCUMENT_NAME, Document
from vidc.compiler.config.resolve import Settings, resolve

Edit = Callable[[Callable[[dict[str, Any]], object]], None]


@pytest.fixture(scope="session")
def settings() -> Settings:
    return resolve("tiny", gpu="cpu", environ={})


@pytest.fixture(scope="session")
def document(settings: Settings) -> Document:
    return portable_document(settings)


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
