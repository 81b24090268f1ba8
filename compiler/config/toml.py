"""Writes settings as TOML: what `tomllib` reads and the standard library cannot write."""

import json
from collections.abc import Mapping
from typing import Any


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Nested tables of strings, numbers, booleans and lists as TOML, without a final newline."""
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
    """A string, number, boolean or list as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # A JSON string is a TOML string but for DEL, which JSON leaves as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
