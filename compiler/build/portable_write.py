"""Leaves a portable build folder: what a machine without the GPU can do of a build."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from vidc.compiler.build.portable_document import (
    DOCUMENT_NAME,
    FOLDER,
    Document,
    make_document,
    stage_folder,
    write_document,
)
from vidc.compiler.build.portable_read import read_portable
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.publish import replacing
from vidc.compiler.store.run import Result
from vidc.plugins.errors import VidcError
from vidc.runtime.integrity import verify_files

PORTABLE = "portable"
"""The name of this step in progress and in plans."""


def holds(folder: Path, document: Document) -> bool:
    """Whether a folder is the one of this document, whole."""
    try:
        found = read_portable(folder)
        verify_files(folder, DOCUMENT_NAME, found.files, "fast")
    except VidcError:
        return False
    return found.to_json() == document.to_json()


def write_portable(
    settings: Settings, results: Mapping[str, Result], folder: Path, note: Callable[[str], None]
) -> bool:
    """Makes the folder of finished stages, or finds it there; whether it was there.

    Args:
        settings: of the build.
        results: of its portable stages.
        folder: an absolute path; an older folder there is replaced.
        note: shows a line of progress.

    Raises:
        UsageError: ``VIDC-BUILD-OUTPUT``, something else is in the way.
        BuildError: ``VIDC-BUILD-DISK`` or ``VIDC-BUILD-STAGE``; an older folder is still there.
    """
    document = make_document(settings, results)
    if holds(folder, document):
        return True
    FOLDER.refuse_occupied(folder)
    with replacing(folder, PORTABLE) as staging:
        note(f"copying what is done to {folder}")
        for name, result in results.items():
            for path in result.files:
                copy = staging / stage_folder(name) / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(result.path / path, copy)
        write_document(document, staging)
    return False
