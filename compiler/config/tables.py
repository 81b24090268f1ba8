"""Between layers of dotted settings and the dataclasses that hold them."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from vidc.compiler.config.layers import Layer, Setting
from vidc.compiler.config.schema import CalibrateConfig, TensorRtConfig, ValidateConfig
from vidc.exporters.config import (
    ModelConfig,
    SamplerConfig,
    StreamConfig,
    TransformerConfig,
    VaeConfig,
)
from vidc.exporters.text_encoder.config import TextEncoderConfig


def read_model(layer: Layer) -> ModelConfig:
    """Reads the model from a layer.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING`` for a missing or mistyped setting,
            ``VIDC-CONFIG-SIZES`` for sizes that cannot work together.
    """
    return ModelConfig(
        transformer=TransformerConfig.from_table(_values(layer, "model"), "model"),
        vae=VaeConfig.from_table(_values(layer, "vae"), "vae"),
        stream=StreamConfig.from_table(_values(layer, "stream"), "stream"),
        sampler=SamplerConfig.from_table(_values(layer, "sampler"), "sampler"),
    )


def read_validate(layer: Layer) -> ValidateConfig:
    """Reads the validation settings from a layer; raises as ``read_model``."""
    return ValidateConfig.from_table(_values(layer, "validate"), "validate")


def read_calibrate(layer: Layer) -> CalibrateConfig:
    """Reads the calibration settings from a layer; raises as ``read_model``."""
    return CalibrateConfig.from_table(_values(layer, "calibrate"), "calibrate")


def read_tensorrt(layer: Layer) -> TensorRtConfig:
    """Reads the TensorRT settings from a layer; raises as ``read_model``."""
    return TensorRtConfig.from_table(_values(layer, "tensorrt"), "tensorrt")


def write_tables(model: ModelConfig, validate: ValidateConfig) -> dict[str, Any]:
    """The tables that ``read_model`` and ``read_validate`` read, as plain JSON values."""
    tables = {
        "model": model.transformer,
        "vae": model.vae,
        "stream": model.stream,
        "sampler": model.sampler,
        "validate": validate,
    }
    return {
        name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(table).items()
        }
        for name, table in tables.items()
    }


def model_from_json(config: Mapping[str, Any]) -> ModelConfig:
    """The model that a manifest's resolved configuration describes; raises as ``read_model``."""
    model = read_model(
        {
            f"{table}.{key}": Setting(value, "manifest")
            for table, values in config.items()
            if isinstance(values, Mapping)
            for key, value in values.items()
        }
    )
    encoder = config.get("text_encoder")
    if encoder is None:
        return model
    return replace(model, text_encoder=TextEncoderConfig.from_table(encoder, "text_encoder"))


def nest(layer: Layer) -> dict[str, Any]:
    """The values of a layer as nested tables."""
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
