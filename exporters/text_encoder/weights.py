"""A text encoder's weights under one name each."""

from pathlib import Path

import torch

from vidc.exporters.checkpoint import LazyTensor, Weights
from vidc.exporters.checkpoint.check import check_dtypes, check_finite, check_model
from vidc.exporters.checkpoint.layout import canonical
from vidc.exporters.checkpoint.read import read_checkpoint
from vidc.exporters.text_encoder.config import TextEncoderConfig
from vidc.exporters.text_encoder.model import EMBEDDING, create
from vidc.plugins.errors import BuildError

_SHARED_EMBEDDING = "shared.weight"
_DECODER = ("decoder.", "lm_head.")


def load_encoder_weights(checkpoint: Path, config: TextEncoderConfig) -> Weights:
    """The weights of an encoder, from its own checkpoint or from that of a whole UMT5.

    Every tensor is read once, to look for NaN and Inf; none is kept.

    Args:
        checkpoint: see ``read_checkpoint``; under transformers' names.
        config: of the encoder.

    Returns:
        Exactly the tensors of ``create(config, ...)``.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-``.
    """
    opened = read_checkpoint(checkpoint)
    tensors, layout = canonical(opened.tensors, checkpoint)
    tensors = {n: t for n, t in tensors.items() if not n.startswith(_DECODER)}
    _name_embedding_once(tensors, checkpoint)
    network = create(config, torch.float32, "meta")
    check_model(tensors, {n: t.shape for n, t in network.state_dict().items()}, layout, checkpoint)
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
