"""A UMT5 encoder's sizes, as the ``config.json`` beside its weights states them."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from vidc.exporters.table import MAX_SIZE, Table
from vidc.plugins.errors import BuildError, UsageError
from vidc.plugins.untrusted_files import require_regular

_MODEL_TYPE = "umt5"
_FEED_FORWARDS = ("gated-gelu", "relu")


@dataclass(frozen=True)
class TextEncoderConfig(Table):
    """Sizes under transformers' names, with its defaults."""

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

    def __post_init__(self) -> None:
        self.require_sizes(
            "text_encoder",
            *("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"),
            *("relative_attention_num_buckets", "relative_attention_max_distance"),
        )
        for name in ("pad_token_id", "eos_token_id"):
            self._require(name, 0 <= getattr(self, name) <= MAX_SIZE)
        self._require("layer_norm_epsilon", 0 < self.layer_norm_epsilon < 1)
        self._require("feed_forward_proj", self.feed_forward_proj in _FEED_FORWARDS)

    def _require(self, name: str, condition: bool) -> None:
        message = f"text_encoder.{name} = {getattr(self, name)!r} is none that UMT5 takes"
        self.require(condition, message, "copy it from the encoder's config.json")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads the sizes in a ``config.json``; its other settings do not affect an encoder.

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
        sizes = {f.name: document[f.name] for f in fields(cls) if f.name in document}
        try:
            return cls.from_table(sizes, "text_encoder")
        except UsageError as error:
            raise BuildError(
                "VIDC-TEXT-MODEL",
                f"{path} does not give the sizes of a UMT5 encoder: {error.message}",
                "restore the config.json that came with the weights",
            ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        require_regular(path)
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
    except OSError as error:
        raise UsageError(
            "VIDC-TEXT-FOLDER",
            f"cannot read {path}: {error.strerror}",
            "name the folder text_encoder of a diffusers Wan pipeline, or the folder of Wan's "
            "original download with models_t5_umt5-xxl-enc-bf16.pth",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BuildError(
            "VIDC-TEXT-MODEL",
            f"{path} is not a model's config: {error}",
            "restore the config.json that came with the weights",
        ) from error
    return document
