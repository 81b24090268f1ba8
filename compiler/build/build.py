"""Builds a bundle: runs the stages, then packages what they made."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vidc.compiler.build.device_memory import capacity
from vidc.compiler.build.lines import naming_lines
from vidc.compiler.build.package import (
    BUNDLE,
    PACKAGE,
    engine_notes,
    key_components,
    package,
    parts,
    published,
)
from vidc.compiler.build.portable_place import placed_stages, recorded_keys
from vidc.compiler.build.portable_read import PortableBuild
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import WORKERS, slot, stages, target_stages
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.plan import PlanRow, plan_row
from vidc.compiler.store.plan import plan as plan_stages
from vidc.compiler.store.publish import exclusive
from vidc.compiler.store.run import Progress, run
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.store import Store


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


@dataclass(frozen=True)
class _Graph:
    """The stages of a build up to packaging.

    Attributes:
        stages: in topological order.
        slot: names the build among others.
        recorded: keys of stages that ran elsewhere, in place of those in the store here.
    """

    stages: Sequence[Stage]
    slot: str
    recorded: Mapping[str, str]


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
    BUNDLE.refuse_occupied(output)
    return _build(settings, _whole(settings, sources), output, cache, progress)


def finish(portable: PortableBuild, output: Path, cache: Path, progress: Progress) -> Built:
    """As ``build``, from a portable build folder; the stage keys are those of one build at once."""
    BUNDLE.refuse_occupied(output)
    return _build(portable.settings, _rest(portable), output, cache, progress)


def plan(settings: Settings, sources: Sources, output: Path, cache: Path) -> list[PlanRow]:
    """What ``build`` would do, stage by stage, without doing it; raises as it does."""
    BUNDLE.refuse_occupied(output)
    return _plan(settings, _whole(settings, sources), output, cache)


def plan_finish(portable: PortableBuild, output: Path, cache: Path) -> list[PlanRow]:
    """What ``finish`` would do, as ``plan``."""
    BUNDLE.refuse_occupied(output)
    return _plan(portable.settings, _rest(portable), output, cache)


def _whole(settings: Settings, sources: Sources) -> _Graph:
    return _Graph(stages(settings, sources), slot(settings), {})


def _rest(portable: PortableBuild) -> _Graph:
    settings = portable.settings
    graph = [*placed_stages(portable), *target_stages(settings)]
    return _Graph(graph, f"{slot(settings)}/finished", recorded_keys(portable))


def _build(
    settings: Settings, graph: _Graph, output: Path, cache: Path, progress: Progress
) -> Built:
    output = output.resolve()
    with Store(cache) as store:
        with naming_lines(settings):
            results = run(
                graph.stages,
                store,
                graph.slot,
                progress,
                workers=WORKERS,
                device_bytes=capacity(settings.target),
            )
        for note in engine_notes(settings.model, results):
            progress.note(note)
        done = [
            BuiltStage(name, graph.recorded.get(name, result.key), result.hit, result.seconds)
            for name, result in results.items()
        ]
        keys = {stage.name: stage.key for stage in done}
        components = key_components(settings, {n: r.digests for n, r in results.items()})
        keys[PACKAGE] = sha256_json(components)
        progress.started(PACKAGE)
        started = time.perf_counter()
        with exclusive(store, output, progress.note):
            hit = published(output, keys[PACKAGE])
            if not hit:
                package(settings, results, keys, output, progress.note)
        packaged = [results[part] for part in parts(settings)]
        size = sum(file.size for result in packaged for file in result.files.values())
        store.remember(_slot(output), components, size)
        seconds = time.perf_counter() - started
        progress.finished(PACKAGE, hit, seconds)
    return Built(output, (*done, BuiltStage(PACKAGE, keys[PACKAGE], hit, seconds)))


def _plan(settings: Settings, graph: _Graph, output: Path, cache: Path) -> list[PlanRow]:
    output = output.resolve()
    with Store(cache) as store:
        rows = plan_stages(graph.stages, store, graph.slot)
        keys = {row.stage: row.key for row in rows if row.key is not None}
        found = {stage: store.lookup(stage, key) for stage, key in keys.items()}
        outputs = {stage: entry.digests for stage, entry in found.items() if entry is not None}
        waits = [part for part in parts(settings) if part not in outputs]
        components = key_components(settings, outputs)
        there = not waits and published(output, sha256_json(components))
        last = store.last(_slot(output), PACKAGE)
        shown = [replace(row, key=graph.recorded.get(row.stage, row.key)) for row in rows]
        return [*shown, plan_row(components, waits, last, found=there)]


def _slot(output: Path) -> str:
    """Of packaging: what changed is told against the last bundle in the same place."""
    return f"bundle {output}"
