"""Finding a text encoder's config, weights and tokenizer in a local folder."""

from dataclasses import dataclass
from pathlib import Path

from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.tokenizer import find_tokenizer
from vidc.plugins.errors import BuildError

_WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class TextEncoderFolder:
    """Where the parts of a text encoder are.

    Attributes:
        path: the folder.
        config: its sizes.
        checkpoint: its weights, for ``load_encoder_weights``.
        tokenizer: a ``tokenizer.json`` or a SentencePiece model, for ``tokenizer_json``.
    """

    path: Path
    config: TextEncoderConfig
    checkpoint: Path
    tokenizer: Path


def open_text_encoder(folder: Path, text_dim: int) -> TextEncoderFolder:
    """Looks at a folder in Hugging Face's layout; reads no weights.

    Args:
        folder: holds ``config.json`` and weights; the tokenizer's files lie there too, or in a
            folder ``tokenizer`` inside it or beside it.
        text_dim: size of the embeddings that the video model takes.

    Raises:
        UsageError: ``VIDC-TEXT-FOLDER``.
        BuildError: ``VIDC-TEXT-MODEL``, ``VIDC-TEXT-DIM`` or ``VIDC-TEXT-TOKENIZER``.
    """
    folder = folder.absolute()
    config = TextEncoderConfig.read(folder / "config.json")
    if config.d_model != text_dim:
        raise BuildError(
            "VIDC-TEXT-DIM",
            f"{folder} has d_model = {config.d_model}, but the preset has model.text_dim = "
            f"{text_dim}",
            "use the text encoder that the video model was trained with",
        )
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), folder)
    return TextEncoderFolder(folder, config, weights, find_tokenizer(folder))
