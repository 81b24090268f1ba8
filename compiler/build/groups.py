"""The settings of a model that reach the stages of one weights group."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vidc.compiler.store.digest import Json
from vidc.exporters.config import ModelConfig
from vidc.plugins.names import TOKENIZER, weights_path

LIBRARIES = {
    "transformer": (),
    "vae": ("diffusers",),
    "text_encoder": ("transformers", "tokenizers"),
}
"""The packages that build the network of a weights group, besides torch."""


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def labeled(label: str, files: Iterable[Path]) -> dict[str, Path]:
    """Returns files that a stage consumes, by what they are for and their names."""
    # Names count: where the weights came from is told by them.
    return {f"{label}.{file.name}": file for file in files}


def group_sizes(model: ModelConfig, group: str) -> Json:
    """Returns the configuration of a weights group's network."""
    sizes = {
        "transformer": model.transformer,
        "vae": model.vae,
        "text_encoder": model.text_encoder,
    }[group]
    assert sizes is not None
    found: Json = plain(asdict(sizes))
    return found


def text_len(model: ModelConfig, group: str) -> int | None:
    """Returns the length of prompts, which reaches the text encoder alone."""
    return model.transformer.text_len if group == "text_encoder" else None


def weights_files(group: str) -> tuple[str, ...]:
    """Returns what stage ``load`` writes of a group, its description left out."""
    text = (TOKENIZER,) if group == "text_encoder" else ()
    return (weights_path(group), *text)
