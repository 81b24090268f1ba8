"""A UMT5 encoder's sizes, as the ``config.json`` beside its weights states them."""

import json
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any, Self

from vidc.plugins.errors import BuildError, UsageError

_MODEL_TYPE = "umt5"

_MAX_SIZE = 2**31 - 1
_FEED_FORWARDS = ("gated-gelu", "relu")


@dataclass(frozen=True)
class TextEncoderConfig:
    """Sizes under transformers' names; those that have a default there have it here."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "gated-gelu"
    pad_token_id: int = 0
    eos_token_id: int = 1

    @classmethod
    def read(cls, path: Path) -> Self:
        """The sizes in a ``config.json``; what else it holds does not matter to an encoder.

        Raises:
            UsageError: ``VIDC-TEXT-FOLDER``, there is no such file to read.
            BuildError: ``VIDC-TEXT-MODEL``, it does not describe a UMT5 model.
        """
        document = _read(path)
        if document.get("model_type") != _MODEL_TYPE:
            raise BuildError(
                "VIDC-TEXT-MODEL",
                f"{path}: model_type = {document.get('model_type')!r}, expected {_MODEL_TYPE!r}",
                "use the UMT5 encoder that the video model was trained with: google/umt5-xxl, or "
                "the folder text_encoder of a diffusers Wan pipeline",
            )
        values: dict[str, Any] = {
            field.name: document.get(field.name, field.default) for field in fields(cls)
        }
        wrong = [
            f"{field.name} is missing"
            if values[field.name] is MISSING
            else f"{field.name} = {values[field.name]!r}"
            for field in fields(cls)
            if not _is_valid(field, values[field.name])
        ]
        if wrong:
            raise BuildError(
                "VIDC-TEXT-MODEL",
                f"{path} does not give the sizes of a UMT5 encoder: {', '.join(wrong)}",
                "restore the config.json that came with the weights",
            )
        return cls(**values)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
    except OSError as error:
        raise UsageError(
            "VIDC-TEXT-FOLDER",
            f"cannot read {path}: {error.strerror}",
            "name a folder that holds the config.json and the weights of a UMT5 encoder, such as "
            "the folder text_encoder of a diffusers Wan pipeline",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BuildError(
            "VIDC-TEXT-MODEL",
            f"{path} is not a model's config: {error}",
            "restore the config.json that came with the weights",
        ) from error
    return document


def _is_valid(field: "Field[Any]", value: object) -> bool:
    if field.type is str:
        return value in _FEED_FORWARDS
    if field.type is float:
        return isinstance(value, float) and 0 < value < 1
    smallest = 0 if field.name.endswith("_id") else 1
    return type(value) is int and smallest <= value <= _MAX_SIZE
