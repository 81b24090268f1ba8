"""Stage ``load``: checkpoint files, or a seed, to the bundle's weights of one group."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.store.stage import Workspace
from vidc.exporters.causal_wan.random_weights import random_weight
from vidc.exporters.checkpoint import Digests, LazyTensor, cast, load_weights, write_weights
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import PRECISIONS, meta_network
from vidc.exporters.text_encoder.tokenizer import tokenizer_json
from vidc.exporters.text_encoder.weights import load_encoder_weights
from vidc.exporters.wan_vae.random_weights import random_state_dict
from vidc.plugins.names import TOKENIZER, weights_path

SOURCE_NAME = "source.json"


def run(
    workspace: Workspace,
    config: ModelConfig,
    group: str,
    precision: str,
    weights: Path | int,
    lora: Path | None,
    tokenizer: Path | None,
) -> None:
    """Writes ``weights/<group>.safetensors`` and where it came from.

    Args:
        workspace: where to.
        config: of the model.
        group: of its weights.
        precision: to write them in.
        weights: a checkpoint, or the seed of random weights.
        lora: merged into the transformer's checkpoint.
        tokenizer: the text encoder's, which is written too.
    """
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in meta_network(config, group, "fp32").state_dict().items()
    }
    encoder = config.text_encoder if group == "text_encoder" else None
    if isinstance(weights, int):
        tensors = _random(config, group, shapes, weights)
        source: dict[str, Any] = {"random_weights": weights}
    else:
        loaded = (
            load_weights(weights, lora, shapes)
            if encoder is None
            else load_encoder_weights(weights, encoder)
        )
        tensors, source = loaded.tensors, dict(loaded.provenance)
    if encoder is not None and tokenizer is not None:
        text = tokenizer_json(tokenizer, encoder, config.transformer.text_len)
        (workspace.output / TOKENIZER).write_text(text)
    (workspace.output / "weights").mkdir()
    path = workspace.output / weights_path(group)
    digests = Digests(tensors)
    write_weights(path, cast(digests.tensors, PRECISIONS[precision]))
    source["digest"] = digests.digest()
    (workspace.output / SOURCE_NAME).write_text(json.dumps(source, sort_keys=True) + "\n")


def read_source(folder: Path) -> dict[str, Any]:
    """Where the weights in the output of this stage came from, and the ``digest`` of them."""
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
