"""A text encoder's weights under one name each."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vidc.exporters.checkpoint import Layout, LazyTensor, Weights
from vidc.exporters.checkpoint.check import check_dtypes, check_finite, check_model
from vidc.exporters.checkpoint.layout import canonical
from vidc.exporters.checkpoint.read import read_checkpoint
from vidc.exporters.draw import draw
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.network import EMBEDDING, create
from vidc.plugins.errors import BuildError

LAYOUTS = (Layout("UMT5 text encoder", ("SelfAttention", "DenseReluDense", "attn", "ffn.gate")),)
_SHARED_EMBEDDING = "shared.weight"
_DECODER = ("decoder.", "lm_head.")


def load_encoder_weights(
    checkpoint: Path, config: TextEncoderConfig, layouts: Sequence[Layout]
) -> Weights:
    """The weights of an encoder, from its own checkpoint or from that of a whole UMT5.

    Every tensor is read once, to look for NaN and Inf; none is kept.

    Args:
        checkpoint: see ``read_checkpoint``; under transformers' names.
        config: of the encoder.
        layouts: of the model's parts.

    Returns:
        Exactly the tensors of ``create(config, ...)``.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-``.
    """
    opened = read_checkpoint(checkpoint)
    tensors, layout = canonical(opened.tensors, checkpoint, layouts)
    tensors = {n: t for n, t in tensors.items() if not n.startswith(_DECODER)}
    _name_embedding_once(tensors, checkpoint)
    network = create(config, torch.float32, "meta")
    shapes = {n: t.shape for n, t in network.state_dict().items()}
    check_model(tensors, shapes, layout, checkpoint, lambda found, expected: [])
    check_dtypes(tensors, checkpoint)
    check_finite(tensors, checkpoint)
    provenance = {
        "files": [file.name for file in opened.files],
        "layout": layout.name,
        "section": opened.section,
    }
    return Weights(tensors, provenance)


def _name_embedding_once(tensors: dict[str, LazyTensor], checkpoint: Path) -> None:
    """Leaves of the token embedding and its tied twin one, under the encoder's own name."""
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
    """Draws one weight, float32, that keeps the scale of what it is applied to."""
    noise = draw(name, shape, seed)
    return 1 + 0.1 * noise if "norm" in name else noise * (1 / math.sqrt(noise[0].numel()))
