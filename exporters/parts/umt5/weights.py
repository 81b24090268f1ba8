"""Weights of a UMT5 text encoder, and its sizes if no config file has them."""

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vidc.exporters.checkpoint.check import check_dtypes, check_finite, check_model
from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.load import Opened, Weights, open_model
from vidc.exporters.draw import draw
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.names import EMBEDDING, FINAL_NORM, LAYOUTS, sizes
from vidc.exporters.parts.umt5.network import create
from vidc.plugins.errors import BuildError, UsageError

_SHARED_EMBEDDING = "shared.weight"
_UNUSED = ("decoder.", "lm_head.", "spiece_model")
"""Prefixes of tensors that the encoder does not use: decoder and tokenizer."""


def load_encoder_weights(
    checkpoint: Path, config: TextEncoderConfig, layouts: Sequence[Layout]
) -> Weights:
    """Returns the encoder's weights from a checkpoint of the encoder or of a whole UMT5.

    Every tensor is read once, to find NaN and Inf, and released again.

    Args:
        checkpoint: see ``read_checkpoint``; under transformers' names or those of Wan's download.
        config: of the encoder.
        layouts: of the model's parts.

    Returns:
        Exactly the tensors of ``create(config, ...)``.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-``.
    """
    network = create(config, torch.float32, "meta")
    shapes = {n: t.shape for n, t in network.state_dict().items()}
    opened = _open(checkpoint, shapes, layouts)
    tensors = opened.tensors
    check_model(tensors, shapes, opened.layout, checkpoint, lambda found, expected: [])
    check_dtypes(tensors, checkpoint)
    check_finite(tensors, checkpoint)
    return Weights(tensors, opened.provenance)


def read_sizes(checkpoint: Path) -> TextEncoderConfig:
    """Returns the sizes of an encoder, from the shapes of its weights.

    Raises:
        BuildError: ``VIDC-TEXT-MODEL``, they are not those of a UMT5 encoder.
        VidcError: what ``load_encoder_weights`` raises.
    """
    opened = _open(checkpoint, (f"{FINAL_NORM}.weight",), LAYOUTS)
    shapes = {name: tensor.shape for name, tensor in opened.tensors.items()}
    try:
        return TextEncoderConfig.from_table(sizes(shapes), "text_encoder")
    except (KeyError, ValueError, UsageError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BuildError(
            "VIDC-TEXT-MODEL",
            f"{checkpoint} does not hold the weights of a UMT5 encoder: {what}",
            "use models_t5_umt5-xxl-enc-bf16.pth of Wan's download, or transformers' folder",
        ) from error


def _open(checkpoint: Path, expected: Collection[str], layouts: Sequence[Layout]) -> Opened:
    opened = open_model(checkpoint, expected, layouts)
    for name in [name for name in opened.tensors if name.startswith(_UNUSED)]:
        del opened.tensors[name]
    _name_embedding_once(opened.tensors, checkpoint)
    return opened


def _name_embedding_once(tensors: dict[str, LazyTensor], checkpoint: Path) -> None:
    """Removes the tied copy of the token embedding; the encoder's own name stays."""
    shared = tensors.pop(_SHARED_EMBEDDING, None)
    if shared is None:
        return
    own = tensors.setdefault(EMBEDDING, shared)
    if own is not shared and not torch.equal(own.load(), shared.load()):
        raise BuildError(
            "VIDC-CHECKPOINT-MISMATCH",
            f"{checkpoint} holds different values as {_SHARED_EMBEDDING} and as {EMBEDDING}, "
            "which are one tensor in a UMT5 encoder",
            "use the checkpoint as transformers saved it",
        )


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draws one float32 weight that preserves the scale of activations."""
    noise = draw(name, shape, seed)
    return 1 + 0.1 * noise if "norm" in name else noise * (1 / math.sqrt(noise[0].numel()))
