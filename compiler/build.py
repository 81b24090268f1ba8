"""Builds a bundle: runs the stages, then packages what they made."""

import time
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.graph import WORKERS, Sources, slot, stages
from vidc.compiler.package import (
    PACKAGE,
    key_components,
    package,
    parts,
    published,
)
from vidc.compiler.pipeline.digest import sha256_json
from vidc.compiler.pipeline.plan import PlanRow, plan_row
from vidc.compiler.pipeline.plan import plan as plan_stages
from vidc.compiler.pipeline.run import Progress, run
from vidc.compiler.pipeline.store import Store
from vidc.compiler.publish import exclusive, refuse_occupied
from vidc.compiler.settings.resolve import Settings
from vidc.runtime.manifest import MANIFEST_NAME


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
        UsageError: ``VIDC-BUILD-OUTPUT``, something that is no bundle is in the way.
        VidcError: what the stages, the store and the validation raise.
    """
    output = output.absolute()
    refuse_occupied(output, MANIFEST_NAME)
    with Store(cache) as store:
        graph = stages(settings, sources)
        results = run(graph, store, slot(settings), progress, workers=WORKERS)
        done = [BuiltStage(n, r.key, r.hit, r.seconds) for n, r in results.items()]
        keys = {stage.name: stage.key for stage in done}
        components = key_components(settings, {n: r.digests for n, r in results.items()})
        keys[PACKAGE] = sha256_json(components)
        progress.started(PACKAGE)
        started = time.perf_counter()
        with exclusive(store, output, progress.note):
            hit = published(output, keys[PACKAGE])
            if not hit:
                package(settings, results, keys, output, progress.note)
        packaged = [results[part] for part in parts(settings.model)]
        size = sum(file.size for result in packaged for file in result.files.values())
        store.remember(_slot(output), components, size)
        seconds = time.perf_counter() - started
        progress.finished(PACKAGE, hit, seconds)
    return Built(output, (*done, BuiltStage(PACKAGE, keys[PACKAGE], hit, seconds)))


def plan(settings: Settings, sources: Sources, output: Path, cache: Path) -> list[PlanRow]:
    """What ``build`` would do, stage by stage, without doing it; raises as it does."""
    output = output.absolute()
    refuse_occupied(output, MANIFEST_NAME)
    with Store(cache) as store:
        rows = plan_stages(stages(settings, sources), store, slot(settings))
        keys = {row.stage: row.key for row in rows if row.key is not None}
        found = {stage: store.lookup(stage, key) for stage, key in keys.items()}
        outputs = {stage: entry.digests for stage, entry in found.items() if entry is not None}
        waits = [part for part in parts(settings.model) if part not in outputs]
        components = key_components(settings, outputs)
        there = not waits and published(output, sha256_json(components))
        last = store.last(_slot(output), PACKAGE)
        return [*rows, plan_row(components, waits, last, found=there)]


def _slot(output: Path) -> str:
    """Of packaging: what changed is told against the last bundle in the same place."""
    return f"bundle {output}"
