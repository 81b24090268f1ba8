"""Conversion of layers of dotted settings to configuration dataclasses."""

from collections.abc import Mapping
from typing import Any

from vidc.compiler.config.layers import Layer
from vidc.compiler.config.schema import (
    CalibrateConfig,
    CheckpointConfig,
    TensorRtConfig,
    ValidateConfig,
)
from vidc.exporters.families import find_family
from vidc.exporters.families.family import Family


def read_model(family: type[Family], layer: Layer) -> Family:
    """Reads a family's model from a layer.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING`` for a missing or mistyped setting,
            ``VIDC-CONFIG-SIZES`` for sizes that cannot work together.
    """
    return family.from_tables({name: _values(layer, name) for name in family.tables})


def read_validate(layer: Layer) -> ValidateConfig:
    """Reads the validation settings from a layer; raises as ``read_model``."""
    return ValidateConfig.from_table(_values(layer, "validate"), "validate")


def read_checkpoint_settings(layer: Layer) -> CheckpointConfig:
    """Reads the settings of reading a checkpoint from a layer; raises as ``read_model``."""
    return CheckpointConfig.from_table(_values(layer, "checkpoint"), "checkpoint")


def read_calibrate(layer: Layer) -> CalibrateConfig:
    """Reads the calibration settings from a layer; raises as ``read_model``."""
    return CalibrateConfig.from_table(_values(layer, "calibrate"), "calibrate")


def read_tensorrt(layer: Layer) -> TensorRtConfig:
    """Reads the TensorRT settings from a layer; raises as ``read_model``."""
    return TensorRtConfig.from_table(_values(layer, "tensorrt"), "tensorrt")


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
