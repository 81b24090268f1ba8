"""Dry run of a build: the action for each stage and its reasons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from vidc.compiler.store.digest import Json, canonical_json, flatten, sha256_json
from vidc.compiler.store.disk import store_errors
from vidc.compiler.store.stage import Stage, check_order, key_components
from vidc.compiler.store.store import Last, Store

DIGESTS = ("inputs.", "files.", "sources")
"""Names or prefixes of components whose values are digests, which reasons do not quote."""


class Status(StrEnum):
    """The action of a build for a stage."""

    HIT = "HIT"
    """The store has its result."""
    MISS = "MISS"
    """The stage runs: it was never built in this slot, or its result is gone."""
    STALE = "STALE"
    """The stage runs: its key changed since the last build in this slot."""
    UNKNOWN = "UNKNOWN"
    """The stage depends on an earlier one that has to run first, so its key is not known."""


@dataclass(frozen=True)
class PlanRow:
    """One stage of a plan.

    Attributes:
        stage: name of the stage.
        status: the action of a build.
        key: key of the result; None if the status is UNKNOWN.
        reasons: the stages it waits for, and the changed components of its key.
    """

    stage: str
    status: Status
    key: str | None
    reasons: tuple[str, ...] = ()


def plan(stages: Sequence[Stage], store: Store, slot: str) -> list[PlanRow]:
    """Returns the action of ``run`` for each stage.

    Args:
        stages: in topological order.
        store: with the results; the plan adds nothing to it but cached digests of large files.
        slot: name of this kind of build, such as ``tiny/cpu/onnxruntime/fp32``; changes are
            relative to the last build in the same slot.

    Raises:
        BuildError: ``VIDC-BUILD-INPUT`` or ``VIDC-BUILD-DISK``.
        ValueError: the stages are not in order.
    """
    check_order(stages)
    outputs: dict[str, Mapping[str, str]] = {}
    rows = []
    with store_errors(store.root):
        for stage in stages:
            waits = tuple(i.stage for i in stage.inputs if i.stage not in outputs)
            components = key_components(stage, outputs, store.digests)
            entry = None if waits else store.lookup(stage.name, sha256_json(components))
            if entry is not None:
                outputs[stage.name] = entry.digests
            last = store.last(slot, stage.name)
            rows.append(plan_row(components, waits, last, found=entry is not None))
    return rows


def plan_row(
    components: Mapping[str, Json], waits: Sequence[str], last: Last | None, *, found: bool
) -> PlanRow:
    """Returns the action of a build for one stage.

    Args:
        components: components of the stage's key, without the inputs that it waits for.
        waits: earlier stages with unknown outputs.
        last: the last result in the slot, if any.
        found: True if the store has the result of this key.
    """
    stage = str(components["stage"])
    changes = () if last is None else tuple(_changes(last.components, components, waits))
    if waits:
        return PlanRow(stage, Status.UNKNOWN, None, (f"after {', '.join(waits)}", *changes))
    key = sha256_json(components)
    if found:
        return PlanRow(stage, Status.HIT, key)
    if last is None:
        return PlanRow(stage, Status.MISS, key)
    if sha256_json(last.components) == key:
        return PlanRow(stage, Status.MISS, key, ("its result was removed or is damaged",))
    return PlanRow(stage, Status.STALE, key, changes)


def _changes(
    old: Mapping[str, Json], new: Mapping[str, Json], waits: Sequence[str]
) -> Iterator[str]:
    """Yields the components that differ, without unknown inputs."""
    before, after = _leaves(old), _leaves(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name) or name in {f"inputs.{w}" for w in waits}:
            continue
        if name.startswith(DIGESTS):
            yield name
        else:
            yield f"{name}: {before.get(name, 'absent')} -> {after.get(name, 'absent')}"


def _leaves(components: Mapping[str, Json]) -> dict[str, str]:
    return {name: canonical_json(value) for name, value in flatten(components).items()}
