"""`vidc cache`: lists, verifies, prunes and removes cached stage results."""

import os
import time
from typing import Any

import click

from vidc.compiler.cli.group import Group
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.config.environment import cache_root
from vidc.compiler.store import upkeep
from vidc.compiler.store.disk import byte_size
from vidc.compiler.store.record import Entry
from vidc.compiler.store.store import Store
from vidc.plugins.errors import GateError, UsageError

DAY = 86400.0
GB = 1e9


@click.group(cls=Group, no_args_is_help=False)
def command() -> None:
    """List, verify, prune or empty the build cache."""


@command.command("ls")
@json_option
def list_entries(as_json: bool) -> None:
    """List cached results, least recently used first."""
    store = _store()
    entries = upkeep.ls(store)
    if as_json:
        print_json({"root": str(store.root), "entries": [_document(e) for e in entries]})
        return
    if entries:
        print_text(_table(entries))
    print_text(f"{_total(entries)} in {len(entries)} results under {store.root}")


@command.command("verify")
@click.option(
    "--remove", is_flag=True, help="Remove damaged results, so that they are built again."
)
@json_option
def verify(remove: bool, as_json: bool) -> None:
    """Hash every result again and compare.

    Exits 1 if a damaged result remains.
    """
    damages = upkeep.verify(_store(), remove=remove)
    remaining = [damage for damage in damages if not damage.removed]
    if as_json:
        rows = [{"path": str(d.path), "problem": d.problem, "removed": d.removed} for d in damages]
        print_json({"passed": not remaining, "damaged": rows})
    else:
        for damage in damages:
            print_text(f"{damage.path}: {damage.problem}{' (removed)' if damage.removed else ''}")
        print_text(f"{len(damages)} damaged, {len(remaining)} remain")
    if remaining:
        raise GateError(
            "VIDC-CACHE-DAMAGED",
            f"{len(remaining)} results in the cache are damaged",
            "run vidc cache verify --remove; a build never uses a damaged result",
        )


@command.command("prune")
@click.option("--max-gb", type=click.FloatRange(min=0), help="Keep at most this much.")
@click.option(
    "--older-than", type=click.FloatRange(min=0), help="Remove results unused for this many days."
)
@json_option
def prune(max_gb: float | None, older_than: float | None, as_json: bool) -> None:
    """Remove results, least recently used first, and leftovers of interrupted builds."""
    if max_gb is None and older_than is None:
        raise UsageError(
            "VIDC-CLI-USAGE",
            "vidc cache prune needs a limit",
            "--max-gb 20 or --older-than 30; vidc cache clean removes everything",
        )
    _prune(
        None if max_gb is None else int(max_gb * GB),
        None if older_than is None else older_than * DAY,
        as_json,
    )


@command.command("clean")
@json_option
def clean(as_json: bool) -> None:
    """Remove every result, and leftovers of interrupted builds."""
    _prune(0, None, as_json)


def _prune(max_bytes: int | None, older_than: float | None, as_json: bool) -> None:
    removed = upkeep.prune(_store(), max_bytes=max_bytes, older_than=older_than)
    if as_json:
        print_json({"removed": [_document(entry) for entry in removed]})
        return
    print_text(f"removed {len(removed)} results, {_total(removed)}")


def _store() -> Store:
    return Store(cache_root(os.environ))


def _total(entries: list[Entry]) -> str:
    return byte_size(sum(entry.size for entry in entries))


def _table(entries: list[Entry]) -> str:
    now = time.time()
    return columns(
        [
            (
                entry.stage,
                entry.key[:12],
                byte_size(entry.size),
                f"used {(now - entry.last_used) / DAY:.1f} days ago",
            )
            for entry in entries
        ]
    )


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "stage": entry.stage,
        "key": entry.key,
        "bytes": entry.size,
        "created": entry.record.created,
        "last_used": entry.last_used,
        "seconds": entry.record.seconds,
    }
