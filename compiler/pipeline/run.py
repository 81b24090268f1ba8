"""Runs a build: what is in the store is used, the rest is built."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vidc.compiler.pipeline.disk import store_errors
from vidc.compiler.pipeline.stage import Stage, Workspace, check_order, key_components
from vidc.compiler.pipeline.store import Store


class Progress(Protocol):
    """Is told how a build gets on."""

    def started(self, stage: str) -> None:
        """A stage's turn has come."""

    def finished(self, stage: str, hit: bool, seconds: float) -> None:
        """A stage's result is there: from the store (``hit``), or built just now."""

    def note(self, text: str) -> None:
        """One line worth showing."""


@dataclass(frozen=True)
class Result:
    """The result of one stage.

    Attributes:
        path: folder of its output, to be read only, safe until the store is closed.
        digest: of the whole output.
        key: under which the store has it.
        hit: it was there, or another build made it meanwhile.
        seconds: that this build spent on it.
    """

    path: Path
    digest: str
    key: str
    hit: bool
    seconds: float


def run(stages: Sequence[Stage], store: Store, slot: str, progress: Progress) -> dict[str, Result]:
    """The results of all stages, by name.

    Finished stages stay in the store whatever happens later: an interrupted build resumes at the
    first unfinished one.

    Args:
        stages: in topological order.
        store: where results are looked up and kept.
        slot: names this build among others, for the explanations of a later ``plan``.
        progress: is told of each stage.

    Raises:
        BuildError: ``VIDC-BUILD-STAGE`` names the stage that failed, ``VIDC-BUILD-DISK`` a disk
            that is full or refuses to be written, ``VIDC-BUILD-INPUT`` an unreadable file.
        ValueError: the stages are not in order.
    """
    check_order(stages)
    outputs: dict[str, Mapping[str, str]] = {}
    results: dict[str, Result] = {}
    with store_errors(store.root):
        store.sweep()
        for stage in stages:
            progress.started(stage.name)
            started = time.perf_counter()
            last = store.last(slot, stage.name)

            def produce(output: Path, stage: Stage = stage) -> None:
                inputs = {i.stage: results[i.stage].path for i in stage.inputs}
                stage.run(Workspace(output, inputs, progress.note))

            entry, built = store.obtain(
                key_components(stage, outputs, store.digests),
                produce,
                progress.note,
                needed=None if last is None else last.size,
            )
            store.remember(slot, entry)
            outputs[stage.name] = entry.digests
            seconds = time.perf_counter() - started
            results[stage.name] = Result(entry.output, entry.digest, entry.key, not built, seconds)
            progress.finished(stage.name, not built, seconds)
    return results
