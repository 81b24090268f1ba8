"""Puts a finished folder in its place: whole, or not at all."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vidc.compiler.pipeline.atomic import sync, sync_tree
from vidc.compiler.pipeline.digest import sha256_json
from vidc.compiler.pipeline.disk import stage_errors
from vidc.compiler.pipeline.lock import Mode
from vidc.compiler.pipeline.store import Store
from vidc.plugins.errors import UsageError

OTHER_OUTPUT = "free some space or choose another folder with -o"


def refuse_occupied(output: Path, document: str) -> None:
    """Refuses to replace anything but an empty folder, or an older one with this document in it.

    Raises:
        UsageError: ``VIDC-BUILD-OUTPUT``.
    """
    if not output.exists() or (output / document).exists():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise UsageError(
            "VIDC-BUILD-OUTPUT",
            f"{output} is there already and has no {document}",
            "choose another folder with -o, or remove it",
        )


@contextmanager
def exclusive(store: Store, output: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Waits until no other build writes to ``output``."""
    lock = store.lock(sha256_json(["package", str(output)]))
    try:
        if not lock.try_acquire(Mode.EXCLUSIVE):
            note(f"waiting for another build of {output}")
            while not lock.try_acquire(Mode.EXCLUSIVE):
                time.sleep(0.1)
        yield
    finally:
        lock.close()


@contextmanager
def replacing(output: Path, stage: str) -> Iterator[Path]:
    """An empty folder beside ``output`` that takes its place if nothing is raised.

    What was there stays until then. Of the new folder nothing is left if something is raised.

    Args:
        output: an absolute path.
        stage: what writes it, for messages.

    Raises:
        BuildError: ``VIDC-BUILD-DISK``, or ``VIDC-BUILD-STAGE`` for what is no error of vidc's.
    """
    staging = output.with_name(f".{output.name}.partial")
    try:
        with stage_errors(stage, _existing(output.parent), staging, None, OTHER_OUTPUT):
            _recover(output)
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            yield staging
            sync_tree(staging)
            _replace(staging, output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _existing(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def _replace(staging: Path, output: Path) -> None:
    """Puts the finished folder in the place of an older one, or of nothing."""
    if output.exists():
        output.rename(_older(output))
    staging.rename(output)
    sync(output.parent)
    shutil.rmtree(_older(output), ignore_errors=True)


def _recover(output: Path) -> None:
    """Undoes a replacement that was interrupted between its two renames."""
    if _older(output).exists() and not output.exists():
        _older(output).rename(output)
    shutil.rmtree(_older(output), ignore_errors=True)


def _older(output: Path) -> Path:
    return output.with_name(f".{output.name}.old")
