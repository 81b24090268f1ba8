"""Opens a portable build folder, trusts nothing in it, and finishes its build."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from packaging.version import InvalidVersion, Version

from vidc.compiler.build.build import Build
from vidc.compiler.build.handover import (
    BEGIN_AGAIN,
    DOCUMENT_NAME,
    Components,
    Document,
    read_portable,
    stage_folder,
)
from vidc.compiler.build.place import Place
from vidc.compiler.build.stages import package_step, slot, stages
from vidc.compiler.config.recorded import recorded_settings
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.sources import source_digest, versions
from vidc.compiler.store.stage import Key, Stage
from vidc.plugins.errors import GateError, UnavailableError
from vidc.runtime.integrity import verify_files


@dataclass(frozen=True)
class HandedOver:
    """A portable build folder whose document was checked and that this vidc can finish.

    Attributes:
        folder: an absolute path.
        document: the folder's ``build.json``.
        settings: settings of the build.
    """

    folder: Path
    document: Document
    settings: Settings


def is_portable(path: Path) -> bool:
    """Returns True for a portable build folder: one with ``build.json``."""
    return (path / DOCUMENT_NAME).is_file()


def open_portable(folder: Path) -> HandedOver:
    """Opens a folder and checks its files, and that its stages match its settings.

    The sizes of all files are compared, and the digests of files below 1 MiB. ``Place`` compares
    the digests of all files when it copies them.

    Raises:
        VidcError: what ``read_portable``, ``recorded_settings``, ``stages`` and ``verify_files``
            raise.
        UnavailableError: ``VIDC-PORTABLE-SOURCES``, it was made by vidc with other source code;
            ``VIDC-PORTABLE-TORCH``, by a newer torch.
        GateError: ``VIDC-PORTABLE-STAGES``, its stages do not match its settings.
    """
    document = read_portable(folder)
    settings = recorded_settings(document.settings, document.origins, "build.settings")
    keys = {stage.name: stage.key() for stage in stages(settings, None) if stage.portable}
    if document.stages.keys() != keys.keys():
        wrong = sorted(document.stages.keys() ^ keys.keys())
        raise _other_stages(folder, f"{wrong[0][:80]!r} is not a stage of both")
    _check_sources(folder, document, keys)
    for name, output in document.stages.items():
        _check_stage(folder, name, output.components, keys[name])
        _check_torch(folder, output.components.tools)
    verify_files(folder, DOCUMENT_NAME, document.files, "fast")
    return HandedOver(folder.absolute(), document, settings)


def _check_sources(folder: Path, document: Document, keys: Mapping[str, Key]) -> None:
    """Refuses results of other source code than is installed here."""
    for name, output in document.stages.items():
        if output.components.sources != source_digest(keys[name].entries):
            raise UnavailableError(
                "VIDC-PORTABLE-SOURCES",
                f"{folder} was made by vidc {document.vidc[:40]} with other sources of {name} than "
                f"vidc {version('vidc')} has here",
                BEGIN_AGAIN,
            )


def _check_stage(folder: Path, name: str, components: Components, key: Key) -> None:
    if components.stage != name:
        raise _other_stages(folder, f"{name} is called {components.stage[:80]!r}")
    assert isinstance(key.config, Mapping)
    differ = [field for field, value in key.config.items() if components.config.get(field) != value]
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


def rest(given: HandedOver) -> Build:
    """Returns the build that finishes a bundle which another machine began.

    Portable stages are imported from the folder; the others run here. The bundle records the keys
    that a whole build on one machine has.
    """
    settings = given.settings
    chosen: list[Stage] = [
        _placed(given, stage.name) if stage.portable else stage for stage in stages(settings, None)
    ]
    keys = {name: output.components.key for name, output in given.document.stages.items()}
    return Build(settings, chosen, package_step(settings), f"{slot(settings)}/finished", keys)


def _placed(given: HandedOver, stage: str) -> Place:
    done = given.document.stages[stage]
    return Place(stage, given.folder / stage_folder(stage), done.components.key, done.files)
