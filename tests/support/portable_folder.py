"""A portable build folder whose stages did not run: what reading one looks at is right."""

import hashlib
import json
from pathlib import Path

from vidc.compiler.build.handover import Components, Document, Output, stage_folder
from vidc.compiler.build.stages import stages
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.sources import source_digest, versions
from vidc.runtime.document import FileEntry


def portable_document(settings: Settings) -> Document:
    """The document of a build with these settings."""
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
    """Writes the document, and a file for each stage."""
    for name in document.stages:
        file = folder / stage_folder(name) / "a" / "data"
        file.parent.mkdir(parents=True)
        file.write_bytes(name.encode())
    document.write(folder)
    return folder
