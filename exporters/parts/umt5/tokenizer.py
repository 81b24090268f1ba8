"""Conversion of a text encoder's tokenizer to one self-contained ``tokenizer.json``."""

from pathlib import Path
from typing import Any

from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.plugins.errors import BuildError

_JSON = "tokenizer.json"
_SENTENCEPIECE = "spiece.model"
_UNKNOWN = "\ue000"
"""Private-use character, which no vocabulary contains."""


def find_tokenizer(folder: Path) -> Path:
    """The tokenizer's file in a model's folder, or in a tokenizer's folder inside or beside it.

    Raises:
        BuildError: ``VIDC-TEXT-TOKENIZER``.
    """
    beside = (folder / "tokenizer", folder.parent / "tokenizer", folder / "google" / "umt5-xxl")
    places = (folder, *beside)
    for place in places:
        for name in (_JSON, _SENTENCEPIECE):
            if (place / name).is_file():
                return place / name
    raise BuildError(
        "VIDC-TEXT-TOKENIZER",
        f"neither {_JSON} nor {_SENTENCEPIECE} is in any of {', '.join(map(str, places))}",
        "fetch the tokenizer too: the folder tokenizer of a diffusers pipeline, or google/umt5-xxl "
        "of Wan's original download",
    )


def tokenizer_files(file: Path) -> tuple[Path, ...]:
    """Every file that ``tokenizer_json`` reads.

    Args:
        file: what ``find_tokenizer`` found; transformers takes a SentencePiece model's settings
            from the JSON files beside it.
    """
    beside = sorted(file.parent.glob("*.json")) if is_sentencepiece(file) else []
    return (file, *beside)


def is_sentencepiece(file: Path) -> bool:
    """Returns True if a file that ``find_tokenizer`` found is a SentencePiece model."""
    return file.name == _SENTENCEPIECE


def tokenizer_json(file: Path, config: TextEncoderConfig, length: int) -> str:
    """The tokenizer as JSON that the ``tokenizers`` library reads.

    It ends every text with the end-of-sequence token, truncates it before that and pads it to
    ``length`` tokens.

    Args:
        file: what ``find_tokenizer`` found.
        config: of the encoder that takes its tokens.
        length: tokens of every text.

    Raises:
        BuildError: ``VIDC-TEXT-TOKENIZER``, it cannot be read or is not this encoder's.
    """
    tokenizer = _read(file)
    problem = _mismatch(tokenizer, config)
    if problem:
        raise BuildError(
            "VIDC-TEXT-TOKENIZER",
            f"{file} is not the tokenizer of this encoder: {problem}",
            "take the tokenizer and the weights from one model",
        )
    pad = config.pad_token_id
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=pad, pad_token=tokenizer.id_to_token(pad))
    return str(tokenizer.to_str())


def _read(file: Path) -> Any:
    """The ``tokenizers.Tokenizer`` of a file.

    A tokenizer.json is taken as it is: transformers 5 builds parts of some tokenizers anew.
    """
    from tokenizers import Tokenizer

    try:
        if file.name == _JSON:
            return Tokenizer.from_file(str(file))
        return _from_sentencepiece(file)
    except Exception as error:
        # Neither library says what it raises for a file that it cannot use.
        raise BuildError(
            "VIDC-TEXT-TOKENIZER",
            f"{file} cannot be read as a tokenizer: {error}",
            f"fetch it again, or fetch the model's {_JSON}; transformers needs the packages "
            f"sentencepiece and protobuf to read {_SENTENCEPIECE}",
        ) from error


def _from_sentencepiece(file: Path) -> Any:
    from sentencepiece import SentencePieceProcessor
    from transformers import T5TokenizerFast

    tokenizer = T5TokenizerFast.from_pretrained(
        file.parent, local_files_only=True
    ).backend_tokenizer
    # transformers 5 always uses T5's unknown token, 2, without byte fallback; the model may not.
    converted = tokenizer.encode(_UNKNOWN, add_special_tokens=False).ids
    original = SentencePieceProcessor(model_file=str(file)).encode(_UNKNOWN)
    if converted != original:
        raise ValueError(
            f"transformers turns an unknown character into {converted}, the model into {original}"
        )
    return tokenizer


def _mismatch(tokenizer: Any, config: TextEncoderConfig) -> str | None:
    size, last = tokenizer.get_vocab_size(), tokenizer.encode("").ids[-1:]
    if size > config.vocab_size:
        return f"it has {size} tokens, the encoder vocab_size = {config.vocab_size}"
    if tokenizer.id_to_token(config.pad_token_id) is None:
        return f"it has no token {config.pad_token_id}, the encoder's pad_token_id"
    if last != [config.eos_token_id]:
        return f"it ends a text with {last}, not with eos_token_id = {config.eos_token_id}"
    return None
