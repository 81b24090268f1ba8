"""Differences between two tables of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.compiler.store.digest import flatten


@dataclass(frozen=True)
class Change:
    """Value that differs, by dotted name; None if one side lacks it."""

    name: str
    old: Any
    new: Any


Sections = dict[str, tuple[Change, ...]]
"""Changes by subject; subjects without changes are left out."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Returns the leaves that differ in the order of ``old``, then those only in ``new``."""
    before, after = flatten(old), flatten(new)
    return tuple(
        Change(name, before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


def sections(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> Sections:
    """Returns the changes of each subject that has any."""
    found = {
        subject: changes(old.get(subject, {}), new.get(subject, {})) for subject in {**old, **new}
    }
    return {subject: changed for subject, changed in found.items() if changed}
