"""Dataclasses that read themselves from tables of TOML or JSON."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from vidc.plugins.errors import UsageError, nearest

MAX_SIZE = 2**24
"""Upper limit of every size, far above real ones: products of sizes then fit int64.

The specs of the runtime's programs have the same limit.
"""
_KINDS = {
    int: ("an integer", "integers"),
    float: ("a finite number", "finite numbers"),
    bool: ("true or false", "true or false"),
    str: ("a string", "strings"),
}
"""Names of a type in messages: of one value, and of a list of values."""


@dataclass(frozen=True)
class Table:
    """Base of dataclasses that are read from a TOML table and refuse unknown fields."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], name: str) -> Self:
        """The table ``[name]`` as this class; lists become tuples, integers become floats.

        Raises:
            UsageError: ``VIDC-CONFIG-SETTING`` for an unknown, missing or mistyped setting, or a
                number that is not finite; ``VIDC-CONFIG-SIZES`` for what the class refuses.
        """
        kinds = get_type_hints(cls)
        known = {field.name: field for field in fields(cls)}
        for key in table:
            if key not in known:
                raise UsageError(
                    "VIDC-CONFIG-SETTING", f"no setting {name}.{key}", nearest(key, known)
                )
        values = {}
        for key, field in known.items():
            kind = _without_none(kinds[key])
            if key not in table:
                if field.default is MISSING:
                    raise UsageError(
                        "VIDC-CONFIG-SETTING",
                        f"setting {name}.{key} is missing",
                        f"add {key} = … to [{name}]",
                    )
                continue
            values[key] = _coerce(table[key], kind)
            if values[key] is None:
                raise UsageError(
                    "VIDC-CONFIG-SETTING",
                    f"{name}.{key} = {table[key]!r} is not {_describe(kind)}",
                    f"set {name}.{key} to {_describe(kind)}",
                )
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Returns the table that ``from_table`` reads, with all defaults, as JSON values."""
        items = asdict(self).items()
        return {key: list(value) if isinstance(value, tuple) else value for key, value in items}

    def require(self, condition: bool, message: str, hint: str) -> None:
        """Refuses values that cannot work, alone or together, with ``VIDC-CONFIG-SIZES``."""
        if not condition:
            raise UsageError("VIDC-CONFIG-SIZES", message, hint)

    def require_sizes(self, table: str, *names: str) -> None:
        """Refuses sizes, and lists of sizes, that are not within 1 and ``MAX_SIZE``."""
        for name in names:
            value = getattr(self, name)
            sizes = value if isinstance(value, tuple) else (value,)
            self.require(
                all(0 < size <= MAX_SIZE for size in sizes),
                f"{table}.{name} = {', '.join(map(str, sizes))} is not within 1 and {MAX_SIZE}",
                f"set {table}.{name} to 1 or more",
            )


def _coerce(value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` if it is one, else None."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if not isinstance(value, list | tuple):
            return None
        items = [_coerce(v, item) for v in value]
        return None if any(v is None for v in items) else tuple(items)
    if isinstance(value, bool) and kind is not bool:
        return None
    if kind is float and isinstance(value, int | float):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    return value if isinstance(value, kind) else None


def _without_none(kind: Any) -> Any:
    """``kind`` of ``kind | None``."""
    if isinstance(kind, UnionType):
        (kind,) = (option for option in get_args(kind) if option is not NoneType)
    return kind


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return f"a list of {_KINDS[get_args(kind)[0]][1]}"
    return _KINDS[kind][0]
