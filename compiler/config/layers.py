"""Layers of settings, lowest precedence first, each value with the place it came from."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vidc.compiler.config.schema import require_setting
from vidc.compiler.config.toml import read_toml
from vidc.compiler.store.digest import flatten
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UsageError


class Setting(NamedTuple):
    """A value and where it was set, such as ``--gpu`` or ``preset tiny``."""

    value: Any
    origin: str


Layer = Mapping[str, Setting]
"""Settings by dotted name, all of one precedence."""


def table_layer(table: Mapping[str, Any], origin: str, family: type[Family]) -> dict[str, Setting]:
    """Returns the settings of nested tables, checked against those of a family.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING`` for an unknown name.
    """
    flat = flatten(table)
    for name in flat:
        require_setting(name, origin, family)
    return {name: Setting(value, origin) for name, value in flat.items()}


def file_layer(file: Path, family: type[Family]) -> dict[str, Setting]:
    """Returns the settings of a ``--config`` file.

    Raises:
        UsageError: ``VIDC-CONFIG-FILE`` for an unreadable file, ``VIDC-CONFIG-SETTING`` for an
            unknown name.
    """
    return table_layer(read_toml(file), f"--config {file}", family)


def assignment_layer(assignments: Iterable[str], family: type[Family]) -> dict[str, Setting]:
    """Returns the settings of ``--set key=value``; a value that is not TOML is a string.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING`` for an unknown name or a missing ``=``,
            ``VIDC-CLI-USAGE`` for a setting given twice.
    """
    layer: dict[str, Setting] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals:
            raise UsageError(
                "VIDC-CONFIG-SETTING",
                f"--set {assignment} has no value",
                "write --set key=value, such as --set stream.window=9",
            )
        origin = f"--set {name}"
        require_setting(name, origin, family)
        if name in layer:
            raise UsageError(
                "VIDC-CLI-USAGE", f"--set gives {name} twice", "give each setting one value"
            )
        layer[name] = Setting(_toml_value(text), origin)
    return layer


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text
