"""Opens a portable build folder, which comes from outside and is trusted in nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from vidc.compiler.build.portable_document import DOCUMENT_NAME, SCHEMA, Components, Document
from vidc.compiler.build.stages import portable_work
from vidc.compiler.build.work import Work
from vidc.compiler.config.recorded import recorded_settings
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.sources import source_digest
from vidc.compiler.store.versions import versions
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.runtime.integrity import verify_files
from vidc.runtime.manifest import read_document
from vidc.runtime.strict import read

_BEGIN_AGAIN = "finish the build with the vidc that began it, or begin it again with this one"


@dataclass(frozen=True)
class PortableBuild:
    """A portable build folder that was read and fits this vidc.

    Attributes:
        folder: where it lies.
        document: its ``build.json``.
        settings: of the build.
    """

    folder: Path
    document: Document
    settings: Settings


def is_portable(path: Path) -> bool:
    """Whether a path is meant as a portable build folder: a folder with ``build.json``."""
    return (path / DOCUMENT_NAME).is_file()


def read_portable(folder: Path) -> Document:
    """The document of a folder, its fields checked; opens nothing else.

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
    if schema > SCHEMA:
        raise UnavailableError(
            "VIDC-PORTABLE-SCHEMA",
            f"{folder} has schema {schema}; this vidc reads schema {SCHEMA}",
            _BEGIN_AGAIN,
        )
    document: Document = read(table, Document, "build")
    return document


def open_portable(folder: Path) -> PortableBuild:
    """A folder whose files are there and whose stages are those of its settings.

    Files of less than a MiB are compared with their digests, all by their sizes; larger ones are
    compared when they are copied.

    Raises:
        VidcError: what ``read_portable``, ``recorded_settings`` and ``verify_files`` raise.
        UnavailableError: ``VIDC-PORTABLE-SOURCES``, other sources made it; ``VIDC-PORTABLE-TORCH``,
            a newer torch did.
        GateError: ``VIDC-PORTABLE-STAGES``, it was made for other settings than it says.
    """
    document = read_portable(folder)
    settings = recorded_settings(document.settings, document.origins, "build.settings")
    work = portable_work(settings)
    if document.stages.keys() != work.keys():
        wrong = sorted(document.stages.keys() ^ work.keys())
        raise _other_stages(folder, f"{wrong[0][:80]!r} is not a stage of both")
    _check_sources(folder, document, work)
    for name, output in document.stages.items():
        _check_stage(folder, name, output.components, work[name])
        _check_torch(folder, output.components.tools)
    verify_files(folder, DOCUMENT_NAME, document.files, "fast")
    return PortableBuild(folder, document, settings)


def _check_sources(folder: Path, document: Document, work: Mapping[str, Work]) -> None:
    """What was done must be what would be done here: the rest of the build relies on it."""
    other = [
        name
        for name, output in document.stages.items()
        if output.components.sources != source_digest(work[name].entries)
    ]
    if other:
        raise UnavailableError(
            "VIDC-PORTABLE-SOURCES",
            f"{folder} was made by vidc {document.vidc[:40]} with other sources of {other[0]} than "
            f"vidc {version('vidc')} has here",
            _BEGIN_AGAIN,
        )


def _check_stage(folder: Path, name: str, components: Components, work: Work) -> None:
    if components.stage != name:
        raise _other_stages(folder, f"{name} is called {components.stage[:80]!r}")
    differ = [key for key, value in work.config.items() if components.config.get(key) != value]
    if differ:
        raise _other_stages(folder, f"{name} was made with another {differ[0]}")


def _other_stages(folder: Path, why: str) -> GateError:
    return GateError(
        "VIDC-PORTABLE-STAGES",
        f"what {folder} holds is not of the settings that it names: {why}",
        "copy the folder again from where it was made, or begin the build again",
    )


def _check_torch(folder: Path, tools: Mapping[str, str]) -> None:
    if "torch" not in tools:
        return
    made, here = tools["torch"], versions("torch")["torch"]
    try:
        newer = Version(made).release > Version(here).release
    except InvalidVersion:
        newer = True
    if newer:
        raise UnavailableError(
            "VIDC-PORTABLE-TORCH",
            f"{folder} was made with torch {made[:64]!r}, newer than the {here} that is installed",
            f"install torch {made[:64]} or newer, or begin the build again here",
        )
