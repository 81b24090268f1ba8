"""Progress file of an analysis, replaced atomically after each group and each mix."""

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from vidc.compiler.analyze.trials import Damage
from vidc.compiler.store.atomic import read_json, write_json
from vidc.compiler.store.digest import Json, sha256_json
from vidc.compiler.store.disk import stage_errors
from vidc.compiler.store.publish import OTHER_OUTPUT

_DAMAGED = (
    OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Exceptions from reading a damaged file."""
_MOST = 2**22
"""Size limit in bytes, far above real files."""


class State:
    """Measured figures, saved in a file for one key.

    Figures are saved exactly, so that a resumed analysis makes the same choice. A file with another
    key and a damaged file are ignored.

    Args:
        path: path of the file, in an existing folder.
        key: digest of all that the figures depend on.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        found = _read(path, key)
        self._groups: dict[str, list[str]] = {} if found is None else found["groups"]
        self._mixes: dict[str, str] = {} if found is None else found["mixes"]

    def has_group(self, pattern: str) -> bool:
        """Returns True if this group is measured."""
        return pattern in self._groups

    def damage(self, pattern: str, play: Callable[[], Damage]) -> Damage:
        """Returns the damage of a group, and plays it if unknown; raises as ``psnr``."""
        if pattern not in self._groups:
            damage = play()
            self._groups[pattern] = [damage.sqnr_db.hex(), damage.psnr_db.hex()]
            self._save(pattern)
        return Damage(*map(float.fromhex, self._groups[pattern]))

    def psnr(self, patterns: Collection[str], play: Callable[[], float]) -> float:
        """Returns the PSNR of these groups together, in dB, and plays them if unknown.

        Raises:
            BuildError: ``VIDC-BUILD-DISK``, the file cannot be written.
        """
        mix = " ".join(sorted(patterns))
        if mix not in self._mixes:
            self._mixes[mix] = play().hex()
            self._save("a mix")
        return float.fromhex(self._mixes[mix])

    def _save(self, name: str) -> None:
        figures: dict[str, Json] = {"groups": self._groups, "mixes": self._mixes}
        document = {"key": self._key, "sha256": sha256_json(figures), **figures}
        folder = self._path.parent
        with stage_errors(name, folder, folder, None, OTHER_OUTPUT):
            write_json(self._path, document)


def _read(path: Path, key: str) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MOST:
            return None
        found = read_json(path)
        figures = {name: found[name] for name in ("groups", "mixes")}
        if found["key"] != key or found["sha256"] != sha256_json(figures):
            return None
        values = [value for pair in figures["groups"].values() for value in pair]
        if any(math.isnan(float.fromhex(value)) for value in [*values, *figures["mixes"].values()]):
            return None
    except _DAMAGED:
        # The analysis starts over.
        return None
    return figures
