"""Stage ``load``: checkpoint files, or a seed, to the bundle's weights of one group."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.pipeline.stage import Workspace
from vidc.exporters.causal_wan.random_weights import random_weight
from vidc.exporters.checkpoint import LazyTensor, cast, load_weights, write_weights
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import PRECISIONS, meta_network
from vidc.exporters.text_encoder.tokenizer import tokenizer_json
from vidc.exporters.text_encoder.weights import load_encoder_weights
from vidc.exporters.wan_vae.random_weights import random_state_dict
from vidc.runtime.text import TOKENIZER

SOURCE_NAME = "source.json"


def run(
    workspace: Workspace,
    config: ModelConfig,
    group: str,
    precision: str,
    checkpoint: Path | None,
    lora: Path | None,
    seed: int | None,
    tokenizer: Path | None,
) -> None:
    """Writes ``weights/<group>.safetensors`` and where it came from.

    Either ``checkpoint`` or ``seed`` is given; ``lora`` belongs to a checkpoint. A text encoder
    comes with its tokenizer, which is written too.
    """
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in meta_network(config, group, "fp32").state_dict().items()
    }
    if config.text_encoder is not None and checkpoint is not None and tokenizer is not None:
        loaded = load_encoder_weights(checkpoint, config.text_encoder)
        tensors, source = loaded.tensors, loaded.provenance
        text = tokenizer_json(tokenizer, config.text_encoder, config.transformer.text_len)
        (workspace.output / TOKENIZER).write_text(text)
    elif checkpoint is not None:
        loaded = load_weights(checkpoint, lora, shapes)
        tensors, source = loaded.tensors, loaded.provenance
    else:
        assert seed is not None
        tensors, source = _random(config, group, shapes, seed), {"random_weights": seed}
    (workspace.output / "weights").mkdir()
    path = workspace.output / weights_path(group)
    write_weights(path, cast(tensors, PRECISIONS[precision]))
    (workspace.output / SOURCE_NAME).write_text(json.dumps(source, sort_keys=True) + "\n")


def weights_path(group: str) -> str:
    """Where a bundle, and the output of this stage, keep the weights of a group."""
    return f"weights/{group}.safetensors"


def read_source(folder: Path) -> dict[str, Any]:
    """Where the weights in the output of this stage came from."""
    source: dict[str, Any] = json.loads((folder / SOURCE_NAME).read_text())
    return source


def _random(
    config: ModelConfig, group: str, shapes: dict[str, tuple[int, ...]], seed: int
) -> dict[str, LazyTensor]:
    if group == "vae":
        drawn = random_state_dict(config.vae, seed, torch.float32)
        return {name: LazyTensor.of(tensor) for name, tensor in drawn.items()}
    return {
        name: LazyTensor(shape, torch.float32, partial(random_weight, name, shape, seed))
        for name, shape in shapes.items()
    }
