"""Atomic publication of folders for users, such as bundles, from results in the store."""

import glob
import json
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

from vidc.compiler.store.atomic import Mode, drafts, exchange, sync, sync_tree
from vidc.compiler.store.digest import DigestMemory, Json, sha256_json
from vidc.compiler.store.disk import stage_errors
from vidc.compiler.store.record import File
from vidc.compiler.store.run import Result
from vidc.compiler.store.stage import Step, key_components
from vidc.compiler.store.store import Store
from vidc.plugins.errors import UsageError

OTHER_OUTPUT = "free some space or choose another folder with -o"
_ELSEWHERE = "choose another folder with -o, or remove it"


@dataclass(frozen=True)
class Kind:
    """A kind of folder that vidc writes, such as a bundle.

    Attributes:
        document: name of the JSON file that identifies the kind, such as ``manifest.json``.
        listed: returns the paths of the folder's other files from the parsed document.
    """

    document: str
    listed: Callable[[dict[str, Any]], Iterable[str]]

    def refuse_occupied(self, output: Path) -> None:
        """Refuses to replace anything except an empty folder or an older one of this kind.

        An older one that has files which its document does not list is refused as well: those
        files are the user's and would be lost.

        Raises:
            UsageError: ``VIDC-BUILD-OUTPUT``.
        """
        above = _existing(output.absolute().parent)
        if not above.is_dir():
            _refuse(f"{above} is no folder, so there can be no {output}", "choose another with -o")
        if not output.exists():
            return
        if not output.is_dir():
            _refuse(f"{output} is there already and is no folder", _ELSEWHERE)
        files = [p for p in output.rglob("*") if p.is_symlink() or not p.is_dir()]
        found = {path.relative_to(output).as_posix() for path in files}
        if found and self.document not in found:
            _refuse(f"{output} is there already and has no {self.document}", _ELSEWHERE)
        others = sorted(found - {self.document} - self._own(output / self.document))
        if others:
            more = "" if len(others) == 1 else f" and {len(others) - 1} more"
            _refuse(
                f"{output} holds {others[0]!r}{more}, which its {self.document} does not list",
                "move that away, or choose another folder with -o: an older one is replaced whole",
            )

    def _own(self, document: Path) -> set[str]:
        try:
            return set(self.listed(json.loads(document.read_bytes())))
        except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return set()  # Damaged, or of another version.


class Finished(Protocol):
    """A stage's result, or the record of one."""

    @property
    def components(self) -> Mapping[str, Json]:
        """Components of the result's key."""

    @property
    def files(self) -> Mapping[str, File]:
        """Files that the stage wrote, by path in its output."""


@dataclass(frozen=True)
class Publishing:
    """Output folder and inputs of a publication.

    Attributes:
        output: an empty folder to write, which is moved to ``place`` afterwards.
        place: absolute path of the published folder.
        results: results of the earlier stages, by name.
        keys: keys of those stages and of the publication, by name.
        note: shows a line of progress.
        call: runs a module's function, in a worker process if one is idle; see ``Workers.call``.
    """

    output: Path
    place: Path
    results: Mapping[str, Result]
    keys: Mapping[str, str]
    note: Callable[[str], None]
    call: Callable[..., Any]


class Publication(Step):
    """The last step of a build: writes a user's folder from results in the store."""

    kind: ClassVar[Kind]

    def components(self, results: Mapping[str, Finished], digests: DigestMemory) -> dict[str, Json]:
        """Returns the components of the key; omits inputs that are not in ``results``.

        Raises:
            BuildError: ``VIDC-BUILD-INPUT``.
        """
        outputs = {
            name: {path: file.sha256 for path, file in result.files.items()}
            for name, result in results.items()
        }
        return key_components(self, outputs, digests)

    def notes(self, results: Mapping[str, Result]) -> list[str]:
        """Returns lines for the user; called even if the published folder is reused."""
        return []

    @abstractmethod
    def published(
        self, folder: Path, key: str, results: Mapping[str, Finished], digests: DigestMemory
    ) -> bool:
        """Returns True if ``folder`` is an undamaged publication of this key."""

    @abstractmethod
    def run(self, workspace: Publishing) -> None:
        """Writes the folder."""


def _refuse(message: str, hint: str) -> NoReturn:
    raise UsageError("VIDC-BUILD-OUTPUT", message, hint)


@contextmanager
def exclusive(store: Store, output: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Waits until no other build writes to ``output``; removes what killed builds left there."""
    lock = store.lock(sha256_json(["package", str(output)]))
    try:
        if not lock.try_acquire(Mode.EXCLUSIVE):
            note(f"waiting for another build of {output}")
            while not lock.try_acquire(Mode.EXCLUSIVE):
                time.sleep(0.1)
        with suppress(OSError):  # `replacing` reports it.
            _recover(output)
        yield
    finally:
        lock.close()


@contextmanager
def replacing(output: Path, stage: str) -> Iterator[Path]:
    """Yields an empty folder that replaces ``output`` if the block does not raise.

    An older folder at ``output`` stays until the block ends; then the two are exchanged. If the
    block raises, the new folder is removed.

    Args:
        output: an absolute path.
        stage: name of the writing stage, for messages.

    Raises:
        BuildError: ``VIDC-BUILD-DISK``, or ``VIDC-BUILD-STAGE`` for errors other than VidcError.
    """
    staging = _staging(output)
    try:
        with stage_errors(stage, _existing(output.parent), staging, None, OTHER_OUTPUT):
            _recover(output)
            staging.mkdir(parents=True)
            yield staging
            sync_tree(staging)
            _replace(staging, output)
    finally:
        _remove(staging)


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _replace(staging: Path, output: Path) -> None:
    """Moves the finished folder to ``output``. After an exchange, the older one is at ``staging``.

    A reader finds the old folder or the new one. On a file system that cannot exchange folders it
    finds neither between two renames; ``_recover`` restores the old one after a kill there.
    """
    if not (output.exists() and exchange(staging, output)):
        if output.exists():
            output.rename(_older(output))
        staging.rename(output)
    sync(output.parent)
    _remove(_older(output))


def _recover(output: Path) -> None:
    """Undoes a replacement that was killed between its two renames, and removes its leftovers."""
    if _older(output).exists() and not output.exists():
        _older(output).rename(output)
    for folder in (_older(output), _staging(output)):
        shutil.rmtree(folder, ignore_errors=True)
    for draft in drafts(output.parent, glob.escape(output.name)):
        draft.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Removes a folder, all of it even if an interrupt arrives meanwhile."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _staging(output: Path) -> Path:
    return output.with_name(f".{output.name}.partial")


def _older(output: Path) -> Path:
    return output.with_name(f".{output.name}.old")
