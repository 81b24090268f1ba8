"""Finding a text encoder's sizes, weights and tokenizer in a local folder."""

from dataclasses import dataclass
from pathlib import Path

from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.tokenizer import find_tokenizer
from vidc.plugins.errors import BuildError

_WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")
_ORIGINAL = "models_t5_*.pth"
"""Name of the encoder's file in Wan's own download."""


@dataclass(frozen=True)
class TextEncoderFolder:
    """Locations of a text encoder's files.

    Attributes:
        config: its sizes.
        checkpoint: its weights, for ``load_encoder_weights``.
        tokenizer: a ``tokenizer.json`` or a SentencePiece model, for ``tokenizer_json``.
    """

    config: TextEncoderConfig
    checkpoint: Path
    tokenizer: Path


def open_text_encoder(path: Path, text_dim: int) -> TextEncoderFolder:
    """Finds a text encoder in Hugging Face's layout, in Wan's, or in one file; reads no weights.

    Args:
        path: a folder with ``config.json`` and weights, a folder with the ``models_t5_*.pth`` of
            Wan's download, or a file of weights, whose shapes tell its sizes. The tokenizer's files
            lie there too, in a folder ``tokenizer`` inside it or beside it, or in
            ``google/umt5-xxl``.
        text_dim: size of the embeddings that the video model takes.

    Raises:
        UsageError: ``VIDC-TEXT-FOLDER``.
        BuildError: ``VIDC-TEXT-MODEL``, ``VIDC-TEXT-DIM`` or ``VIDC-TEXT-TOKENIZER``; what
            ``read_sizes`` raises.
    """
    path = path.absolute()
    original = [path] if path.is_file() else sorted(path.glob(_ORIGINAL))
    if len(original) == 1:
        from vidc.exporters.parts.umt5.weights import read_sizes

        weights, folder = original[0], original[0].parent
        config = read_sizes(weights)
    else:
        folder = path
        config = TextEncoderConfig.read(folder / "config.json")
        weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), folder)
    if config.d_model != text_dim:
        raise BuildError(
            "VIDC-TEXT-DIM",
            f"{path} has d_model = {config.d_model}, but the preset has model.text_dim = "
            f"{text_dim}",
            "use the text encoder that the video model was trained with",
        )
    return TextEncoderFolder(config, weights, find_tokenizer(folder))
