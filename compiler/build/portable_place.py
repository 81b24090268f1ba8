"""Stages that take their output from a portable build folder."""

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from vidc.compiler.build.portable_document import stage_folder
from vidc.compiler.build.portable_programs import refuse_code
from vidc.compiler.build.portable_read import PortableBuild
from vidc.compiler.store.stage import Stage, Workspace
from vidc.plugins.errors import GateError
from vidc.runtime.manifest import FileEntry, refuse_links, unreadable

_CHUNK = 2**22


def placed_stages(portable: PortableBuild) -> list[Stage]:
    """A stage for each that is done, which copies its output and checks it.

    The store has it by its content: by the key that was recorded it would be taken, on a stranger's
    word, for what a build here makes of the same inputs.
    """
    return [
        Stage(
            name=name,
            run=partial(place, portable.folder.absolute() / stage_folder(name), output.files),
            entries=(__name__,),
            config={
                "recorded": output.components.key,
                "files": {path: entry.sha256 for path, entry in output.files.items()},
            },
        )
        for name, output in portable.document.stages.items()
    ]


def recorded_keys(portable: PortableBuild) -> dict[str, str]:
    """The keys of the stages that are done, as a build that did all at once would have them."""
    return {name: output.components.key for name, output in portable.document.stages.items()}


def place(source: Path, files: Mapping[str, FileEntry], workspace: Workspace) -> None:
    """Copies these files of a folder.

    Raises:
        GateError: ``VIDC-BUNDLE-ALTERED``, ``-PATH`` or ``-UNREADABLE`` where one is not what it
            was; what ``refuse_code`` raises.
    """
    for path, entry in files.items():
        refuse_links(source, path)
        target = workspace.output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        found = _copy(source / path, target)
        if found != entry:
            raise GateError(
                "VIDC-BUNDLE-ALTERED",
                f"{source / path} has {found.size} bytes with SHA-256 {found.sha256}, expected "
                f"{entry.size} with {entry.sha256}",
                "copy the folder again from where it was made, or begin the build again",
            )
        if target.suffix == ".pt2":
            refuse_code(target)


def _copy(source: Path, target: Path) -> FileEntry:
    """Copies a file; gives the size and digest of what was copied."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as sink:
        try:
            stream = source.open("rb")
        except OSError as error:
            raise unreadable(source, error) from error
        with stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                sink.write(chunk)
    return FileEntry(size, digest.hexdigest())
