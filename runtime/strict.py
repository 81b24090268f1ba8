"""Strict dataclasses from parsed JSON: unknown, missing or mistyped fields are errors."""

from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from reprlib import repr as short
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from vidc.plugins.errors import GateError, nearest
from vidc.plugins.signature import Signature, TensorSpec

_LONGEST_MESSAGE = 300
_JSON_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    NoneType: "null",
}


def field_error(where: str, what: str, hint: str = "build the bundle again") -> GateError:
    """Returns a ``VIDC-BUNDLE-FIELD`` error about the field at ``where``."""
    return GateError("VIDC-BUNDLE-FIELD", f"{where}: {what[:_LONGEST_MESSAGE]}", hint)


def read(value: Any, kind: Any, where: str) -> Any:
    """Converts ``value``, parsed from JSON, to ``kind``.

    Args:
        value: plain JSON values.
        kind: ``Any``, a scalar type, a StrEnum, a dataclass, ``Signature``, or ``tuple``,
            ``dict`` and ``| None`` of these.
        where: path of the value, for messages.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, a value has another type, a field is unknown or missing,
            or the dataclass raises ValueError.
    """
    if kind is Any:
        return value
    if kind is Signature:
        signature = Signature(read(value, tuple[TensorSpec, ...], where))
        if signature.to_json() != value:
            raise field_error(where, "states, and only states, have access and in_place")
        return signature
    origin = get_origin(kind)
    if origin is UnionType:
        (present,) = (arg for arg in get_args(kind) if arg is not NoneType)
        return None if value is None else read(value, present, where)
    if origin is dict:
        table = _typed(value, dict, where)
        item = get_args(kind)[1]
        return {key: read(table[key], item, f"{where}[{short(key)}]") for key in table}
    if origin is tuple:
        return _read_tuple(_typed(value, list, where), get_args(kind), where)
    if is_dataclass(kind):
        return _read_fields(_typed(value, dict, where), kind, where)
    if issubclass(kind, StrEnum):
        if value not in list(kind):
            raise field_error(where, f"{short(value)} is none of {', '.join(kind)}")
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    return _typed(value, kind, where)


def _typed(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        found = _JSON_NAMES[type(value)]
        raise field_error(where, f"expected {_JSON_NAMES[kind]}, found {found} ({short(value)})")
    return value


def _read_tuple(items: list[Any], kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(items)
    elif len(kinds) != len(items):
        raise field_error(where, f"expected {len(kinds)} values, found {len(items)}")
    return tuple(
        read(item, kind, f"{where}[{i}]")
        for i, (item, kind) in enumerate(zip(items, kinds, strict=True))
    )


def _read_fields(table: dict[str, Any], kind: Any, where: str) -> Any:
    known = {field.name: field for field in fields(kind)}
    for name in table:
        if name not in known:
            raise field_error(where, f"unknown field {short(name)}", nearest(name[:64], known))
    for name, field in known.items():
        if name not in table and field.default is field.default_factory is MISSING:
            raise field_error(where, f"field {name!r} is missing")
    kinds = get_type_hints(kind)
    values = {name: read(table[name], kinds[name], f"{where}.{name}") for name in table}
    try:
        return kind(**values)
    except ValueError as error:
        raise field_error(where, str(error)) from error


def plain(value: Any) -> Any:
    """Inverse of ``read``: converts dataclasses, tuples and signatures to plain JSON values."""
    if isinstance(value, Signature):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
