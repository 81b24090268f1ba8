"""Conversion of layers of dotted settings to configuration dataclasses."""

from collections.abc import Mapping
from typing import Any, TypeVar

from vidc.compiler.config.layers import Layer
from vidc.exporters.families import find_family
from vidc.exporters.families.family import Family
from vidc.exporters.table import Table

TableT = TypeVar("TableT", bound=Table)


def read_model(family: type[Family], layer: Layer) -> Family:
    """Reads a family's model from a layer.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING`` for a missing or mistyped setting,
            ``VIDC-CONFIG-SIZES`` for sizes that cannot work together.
    """
    return family.from_tables({name: _values(layer, name) for name in family.tables})


def read_table(kind: type[TableT], layer: Layer, name: str) -> TableT:
    """Reads the table ``[name]`` from a layer; raises as ``read_model``."""
    return kind.from_table(_values(layer, name), name)


def model_from_json(config: Mapping[str, Any]) -> Family:
    """Reads the model from a manifest's resolved configuration.

    Raises:
        UsageError: as ``find_family`` and ``read_model``.
    """
    family = find_family(str(config.get("family")))
    names = (*family.tables, *family.read_off)
    return family.from_tables(
        {name: config[name] for name in names if isinstance(config.get(name), Mapping)}
    )


def nest(layer: Layer) -> dict[str, Any]:
    """Returns the values of a layer as nested tables."""
    nested: dict[str, Any] = {}
    for name, setting in layer.items():
        *tables, key = name.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[key] = setting.value
    return nested


def _values(layer: Layer, table: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = nest(layer).get(table, {})
    return values
