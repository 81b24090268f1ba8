"""Begins a build whose rest another machine must do."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.backends import backend
from vidc.compiler.build.build import BuiltStage
from vidc.compiler.build.lines import naming_lines
from vidc.compiler.build.portable_document import FOLDER, make_document
from vidc.compiler.build.portable_write import PORTABLE, holds, write_portable
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import WORKERS, portable_stages, slot
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import Json, sha256_json
from vidc.compiler.store.plan import PlanRow, plan_row
from vidc.compiler.store.plan import plan as plan_stages
from vidc.compiler.store.publish import exclusive
from vidc.compiler.store.run import Progress, run
from vidc.compiler.store.store import Store
from vidc.plugins.errors import UnavailableError


@dataclass(frozen=True)
class Begun:
    """A published portable build folder and how it came about, stage by stage."""

    folder: Path
    stages: tuple[BuiltStage, ...]


def lacking(settings: Settings) -> str | None:
    """Why this machine cannot build for the GPU of a build; None if it can, and for a CPU.

    What is missing for a CPU is no reason to go elsewhere: its stage says what to install.
    """
    target = settings.target
    if not target.is_gpu:
        return None
    return absent(target) or backend(settings.backend).unavailable(target)


def begin(
    settings: Settings, sources: Sources, folder: Path, cache: Path, progress: Progress
) -> Begun:
    """Does what any machine can do of a build, and leaves it in ``folder``, or finds it there.

    Args:
        settings: what to build.
        sources: where its weights come from.
        folder: a new one, an empty one, or one of an earlier build.
        cache: where results of stages are kept.
        progress: is told of each stage.

    Raises:
        UsageError: ``VIDC-BUILD-OUTPUT``, something else is in the way.
        UnavailableError: ``VIDC-ENV-BACKEND``, what would compile on any machine is not installed.
        VidcError: what the stages and the store raise.
    """
    folder = folder.resolve()
    FOLDER.refuse_occupied(folder)
    _require_tools(settings)
    with Store(cache) as store:
        with naming_lines(settings):
            results = run(
                portable_stages(settings, sources), store, slot(settings), progress, workers=WORKERS
            )
        done = [BuiltStage(n, r.key, r.hit, r.seconds) for n, r in results.items()]
        components = _components(settings, {n: r.key for n, r in results.items()})
        progress.started(PORTABLE)
        started = time.perf_counter()
        with exclusive(store, folder, progress.note):
            hit = write_portable(settings, results, folder, progress.note)
        size = sum(file.size for result in results.values() for file in result.files.values())
        store.remember(_slot(folder), components, size)
        seconds = time.perf_counter() - started
        progress.finished(PORTABLE, hit, seconds)
    last = BuiltStage(PORTABLE, sha256_json(components), hit, seconds)
    return Begun(folder, (*done, last))


def plan(settings: Settings, sources: Sources, folder: Path, cache: Path) -> list[PlanRow]:
    """What ``begin`` would do, stage by stage, without doing it; raises as it does."""
    folder = folder.resolve()
    FOLDER.refuse_occupied(folder)
    with Store(cache) as store:
        rows = plan_stages(portable_stages(settings, sources), store, slot(settings))
        keys = {row.stage: row.key for row in rows if row.key is not None}
        found = {stage: store.lookup(stage, key) for stage, key in keys.items()}
        records = {stage: entry.record for stage, entry in found.items() if entry is not None}
        waits = [row.stage for row in rows if row.stage not in records]
        there = not waits and holds(folder, make_document(settings, records))
        last = store.last(_slot(folder), PORTABLE)
        return [*rows, plan_row(_components(settings, keys), waits, last, found=there)]


def _require_tools(settings: Settings) -> None:
    """Refuses, before minutes of other stages, what a backend lacks that compiles anywhere."""
    target, chosen = settings.target, backend(settings.backend)
    reason = chosen.unavailable(target) if chosen.anywhere(target) else None
    if reason is not None:
        raise UnavailableError(
            "VIDC-ENV-BACKEND",
            f"backend {settings.backend} builds for {target.name} on any machine, but not on this "
            f"one: {reason}",
            "install it, or pass another --backend",
        )


def _components(settings: Settings, keys: Mapping[str, str]) -> dict[str, Json]:
    """All that a portable build folder depends on."""
    return {"stage": PORTABLE, "config": settings.to_json(), "inputs": dict(keys)}


def _slot(folder: Path) -> str:
    """What changed is told against the last folder in the same place."""
    return f"portable {folder}"
