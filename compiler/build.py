"""Builds a bundle: runs the stages, then packages what they made."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.graph import WORKERS, Sources, slot, stages
from vidc.compiler.package import PACKAGE, exclusive, package, package_key, published
from vidc.compiler.pipeline.plan import PlanRow, Status
from vidc.compiler.pipeline.plan import plan as plan_stages
from vidc.compiler.pipeline.run import Progress, run
from vidc.compiler.pipeline.store import Store
from vidc.compiler.settings.resolve import Settings


@dataclass(frozen=True)
class BuiltStage:
    """One stage of a finished build."""

    name: str
    key: str
    hit: bool
    seconds: float


@dataclass(frozen=True)
class Built:
    """A published bundle and how it came about, stage by stage; the last one packages it."""

    output: Path
    stages: tuple[BuiltStage, ...]


def build(
    settings: Settings, sources: Sources, output: Path, cache: Path, progress: Progress
) -> Built:
    """Makes the bundle at ``output``, or finds it there.

    Args:
        settings: what to build.
        sources: where its weights come from.
        output: the bundle's folder.
        cache: where results of stages are kept.
        progress: is told of each stage.

    Raises:
        VidcError: what the stages, the store and the validation raise.
    """
    output = output.absolute()
    with Store(cache) as store:
        graph = stages(settings, sources)
        results = run(graph, store, slot(settings), progress, workers=WORKERS)
        done = [BuiltStage(n, r.key, r.hit, r.seconds) for n, r in results.items()]
        keys = {stage.name: stage.key for stage in done}
        keys[PACKAGE] = package_key(settings, {n: r.digest for n, r in results.items()})
        progress.started(PACKAGE)
        started = time.perf_counter()
        with exclusive(store, output, progress.note):
            hit = published(output, keys)
            if not hit:
                package(settings, results, keys, output, progress.note)
        seconds = time.perf_counter() - started
        progress.finished(PACKAGE, hit, seconds)
    return Built(output, (*done, BuiltStage(PACKAGE, keys[PACKAGE], hit, seconds)))


def plan(settings: Settings, sources: Sources, output: Path, cache: Path) -> list[PlanRow]:
    """What ``build`` would do, stage by stage, without doing it."""
    output = output.absolute()
    with Store(cache) as store:
        rows = plan_stages(stages(settings, sources), store, slot(settings))
        waits = [row.stage for row in rows if row.status is not Status.HIT]
        if waits:
            reason = f"after {', '.join(waits)}"
            return [*rows, PlanRow(PACKAGE, Status.UNKNOWN, None, (reason,))]
        keys = {row.stage: row.key for row in rows if row.key is not None}
        entries = {stage: store.lookup(stage, key) for stage, key in keys.items()}
        digests = {stage: entry.digest for stage, entry in entries.items() if entry is not None}
        keys[PACKAGE] = package_key(settings, digests)
        return [*rows, _package_row(output, keys)]


def _package_row(output: Path, keys: Mapping[str, str]) -> PlanRow:
    if published(output, keys):
        return PlanRow(PACKAGE, Status.HIT, keys[PACKAGE])
    if output.exists():
        reasons = (f"{output} holds something else",)
        return PlanRow(PACKAGE, Status.STALE, keys[PACKAGE], reasons)
    return PlanRow(PACKAGE, Status.MISS, keys[PACKAGE])
