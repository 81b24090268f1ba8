"""Differences between two tables of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.compiler.store.flatten import flatten


@dataclass(frozen=True)
class Change:
    """A value that differs, by its dotted name; None where there is none."""

    name: str
    old: Any
    new: Any


Sections = dict[str, tuple[Change, ...]]
"""Changes by subject; a subject without changes is left out."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """The leaves that differ, in the order of ``old``, then those that only ``new`` has."""
    before, after = flatten(old), flatten(new)
    return tuple(
        Change(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


def sections(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> Sections:
    """The changes of each subject that has any."""
    found = {
        subject: changes(old.get(subject, {}), new.get(subject, {})) for subject in {**old, **new}
    }
    return {subject: changed for subject, changed in found.items() if changed}
