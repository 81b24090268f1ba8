"""Reads TOML files, shipped or named by a user, and writes settings as TOML."""

import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vidc.plugins.errors import UsageError

_MAX_BYTES = 2**24


def shipped(folder: str) -> dict[str, Traversable]:
    """Returns the TOML files of ``configs/<folder>`` by name, sorted."""
    entries = (files("vidc.configs") / folder).iterdir()
    found = {e.name.removesuffix(".toml"): e for e in entries if e.name.endswith(".toml")}
    return dict(sorted(found.items()))


def shipped_text(name: str) -> str:
    """Returns the text of ``configs/<name>``."""
    return (files("vidc.configs") / name).read_text(encoding="utf-8")


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """Parses a TOML file, which may start with a byte order mark.

    Raises:
        UsageError: ``VIDC-CONFIG-FILE`` if it cannot be read or is not TOML.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(
            "VIDC-CONFIG-FILE", f"cannot read {file}: {error.strerror}", "check the path"
        ) from error
    except (ValueError, RecursionError) as error:  # Python reads integers of 4,300 digits at most.
        raise UsageError(
            "VIDC-CONFIG-FILE",
            f"{file} is not TOML: {str(error)[:200]}",
            "fix the line in the message",
        ) from error


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Formats nested tables as TOML, without a final newline."""
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    parts = []
    if values:
        lines = [f"{key} = {toml_value(value)}" for key, value in values.items()]
        parts.append("\n".join([f"[{path}]", *lines] if path else lines))
    for key, value in table.items():
        if isinstance(value, Mapping):
            parts.append(to_toml(value, f"{path}.{key}" if path else key))
    return "\n\n".join(parts)


def toml_value(value: Any) -> str:
    """Formats a string, number, boolean or list as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # A JSON string is a TOML string except for DEL, which JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
