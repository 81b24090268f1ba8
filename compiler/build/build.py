"""Builds: stages, run or found in the store, and a last step that publishes their results."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vidc.compiler.backends import backend
from vidc.compiler.build.device_memory import capacity
from vidc.compiler.build.lines import naming_lines
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import WORKERS, package_step, slot, stages
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import gpu_unavailable
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.publish import Publication, Publishing, exclusive, replacing
from vidc.compiler.store.run import Progress, Result, run, working
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.store import Store
from vidc.compiler.store.workers import Workers
from vidc.plugins.errors import UnavailableError

if TYPE_CHECKING:
    from vidc.compiler.store.plan import PlanRow


@dataclass(frozen=True)
class BuiltStage:
    """One stage of a finished build."""

    name: str
    key: str
    hit: bool
    seconds: float


@dataclass(frozen=True)
class Built:
    """A published folder and the stages that made it; the last one publishes it."""

    output: Path
    stages: tuple[BuiltStage, ...]


@dataclass(frozen=True)
class Build:
    """Build on this machine.

    It is a whole build, the portable stages of one, or the remaining stages of a build that another
    machine began.

    Attributes:
        settings: settings of the build.
        stages: stages in topological order.
        last: step that publishes their results.
        slot: name under which the store remembers the build, for a later ``plan`` to compare.
        recorded: keys of stages that ran on another machine, by name. They are shown and recorded
            in the manifest instead of the keys here.
        refused: error that ``run`` raises at once; such a build can only be planned.
    """

    settings: Settings
    stages: Sequence[Stage]
    last: Publication
    slot: str
    recorded: Mapping[str, str] = field(default_factory=dict)
    refused: UnavailableError | None = None

    @property
    def count(self) -> int:
        """The number of steps, the last one included."""
        return len(self.stages) + 1

    def plan(self, output: Path, cache: Path) -> "list[PlanRow]":
        """Returns what ``run`` would do, stage by stage, without doing it.

        Raises:
            VidcError: as ``run``, except ``refused`` and what running a stage raises.
        """
        from vidc.compiler.store.plan import plan, plan_row

        self.last.kind.refuse_occupied(output)
        output = output.resolve()
        with Store(cache) as store:
            rows = plan(self.stages, store, self.slot)
            keys = {row.stage: row.key for row in rows if row.key is not None}
            entries = {stage: store.lookup(stage, key) for stage, key in keys.items()}
            found = {stage: entry.record for stage, entry in entries.items() if entry is not None}
            waits = [i.stage for i in self.last.inputs if i.stage not in found]
            components = self.last.components(found, store.digests)
            there = not waits and self.last.published(
                output, sha256_json(components), found, store.digests
            )
            last = store.last(self._last_slot(output), self.last.name)
            shown = [replace(row, key=self.recorded.get(row.stage, row.key)) for row in rows]
            return [*shown, plan_row(components, waits, last, found=there)]

    def run(self, output: Path, cache: Path, progress: Progress) -> Built:
        """Publishes the results at ``output``, or finds them there.

        Args:
            output: the folder; an older one there stays until the new one is finished.
            cache: folder of the results of stages.
            progress: receives each stage.

        Raises:
            UsageError: ``VIDC-BUILD-OUTPUT``, ``output`` is something that must not be replaced.
            UnavailableError: ``refused``.
            VidcError: what the stages, the store and the last step raise.
        """
        self.last.kind.refuse_occupied(output)
        if self.refused is not None:
            raise self.refused
        output = output.resolve()
        with Store(cache) as store, working(store, WORKERS) as pool:
            with naming_lines(self.settings):
                results = run(
                    self.stages,
                    store,
                    self.slot,
                    progress,
                    pool,
                    device_bytes=capacity(self.settings.target),
                )
            for note in self.last.notes(results):
                progress.note(note)
            done = [
                BuiltStage(name, self.recorded.get(name, result.key), result.hit, result.seconds)
                for name, result in results.items()
            ]
            keys = {stage.name: stage.key for stage in done}
            last = self._publish(results, keys, output, store, pool, progress)
        return Built(output, (*done, last))

    def _publish(
        self,
        results: Mapping[str, Result],
        keys: Mapping[str, str],
        output: Path,
        store: Store,
        pool: Workers,
        progress: Progress,
    ) -> BuiltStage:
        last = self.last
        components = last.components(results, store.digests)
        key = sha256_json(components)
        progress.started(last.name)
        started = time.perf_counter()
        with exclusive(store, output, progress.note):
            hit = last.published(output, key, results, store.digests)
            if not hit:
                last.kind.refuse_occupied(output)
                keys = {**keys, last.name: key}
                with replacing(output, last.name) as staging:
                    last.run(Publishing(staging, output, results, keys, progress.note, pool.call))
        consumed = [results[part.stage] for part in last.inputs]
        size = sum(file.size for result in consumed for file in result.files.values())
        store.remember(self._last_slot(output), components, size)
        seconds = time.perf_counter() - started
        progress.finished(last.name, hit, seconds)
        return BuiltStage(last.name, key, hit, seconds)

    def _last_slot(self, output: Path) -> str:
        """Returns the slot of the last step, which depends on the output folder."""
        return f"{self.last.name} {output}"


def whole(settings: Settings, sources: Sources) -> Build:
    """Returns the build of a bundle.

    Raises:
        VidcError: what ``stages`` raises.
    """
    return Build(settings, stages(settings, sources), package_step(settings), slot(settings))


def lacking(settings: Settings) -> str | None:
    """Returns why this machine cannot build for the target's GPU; None if it can, and for a CPU.

    A build for a CPU never moves to another machine: if its backend is not installed, the compile
    stage says what to install.
    """
    target = settings.target
    if not target.is_gpu:
        return None
    return gpu_unavailable(target) or backend(settings.backend).unavailable(target)
