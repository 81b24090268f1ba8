"""Listing, checking and pruning of a store, safe beside running builds."""

import time
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.store.atomic import Mode
from vidc.compiler.store.disk import store_errors
from vidc.compiler.store.record import DamagedError, Entry, open_entry
from vidc.compiler.store.store import Store


@dataclass(frozen=True)
class Damage:
    """A damaged entry: its folder, the problem, and True if removed."""

    path: Path
    problem: str
    removed: bool


def ls(store: Store) -> list[Entry]:
    """Returns all undamaged entries, least recently used first."""
    entries = []
    for path in store.paths():
        try:
            entries.append(open_entry(path))
        except DamagedError:
            continue
    return sorted(entries, key=lambda entry: entry.last_used)


def verify(store: Store, *, remove: bool = False) -> list[Damage]:
    """Hashes every entry; returns the damaged ones and, if ``remove``, removes them.

    Skips entries that a build is writing; never removes entries in use.
    """
    damages = []
    with store_errors(store.root):
        for path in list(store.paths()):
            lock = store.lock(path.name)
            try:
                if not lock.try_acquire(Mode.SHARED) or not path.exists():
                    continue
                problem = _problem(path)
                if problem is not None and remove and lock.try_acquire(Mode.EXCLUSIVE):
                    # The lock was free for a moment, in which a build may have repaired the entry.
                    problem = _problem(path) if path.exists() else None
                    if problem is not None:
                        store.remove(path)
                        damages.append(Damage(path, problem, removed=True))
                elif problem is not None:
                    damages.append(Damage(path, problem, removed=False))
            finally:
                lock.close()
    return damages


def prune(
    store: Store, *, max_bytes: int | None = None, older_than: float | None = None
) -> list[Entry]:
    """Removes unused entries, least recently used first, and returns them.

    Args:
        store: to prune; partial output of dead builds is removed as well.
        max_bytes: limit of the remaining output.
        older_than: limit of the seconds since last use.
    """
    entries = ls(store)
    total = sum(entry.size for entry in entries)
    now = time.time()
    removed = []
    with store_errors(store.root):
        store.sweep()
        for entry in entries:
            too_old = older_than is not None and now - entry.last_used > older_than
            too_much = max_bytes is not None and total > max_bytes
            if (too_old or too_much) and _remove_unused(store, entry.path):
                total -= entry.size
                removed.append(entry)
    return removed


def _remove_unused(store: Store, path: Path) -> bool:
    lock = store.lock(path.name)
    try:
        unused = lock.try_acquire(Mode.EXCLUSIVE) and path.exists()
        if unused:
            store.remove(path)
        return unused
    finally:
        lock.close()


def _problem(path: Path) -> str | None:
    try:
        open_entry(path).verify()
    except DamagedError as error:
        return str(error)
    return None
