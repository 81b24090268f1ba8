"""Prompts as numbers, for a text encoder with a fixed vocabulary."""

import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType

from demo_model.grammar import words

PAD, END, UNKNOWN = 0, 1, 2
"""As in T5. ``UNKNOWN`` has its place in a vocabulary file, and never comes out of ``encode``."""

LENGTH = 32
"""Of a prompt; the longest has 31 tokens with its end."""

VOCABULARY: Mapping[str, int] = MappingProxyType(
    {word: index for index, word in enumerate(["<pad>", "</s>", "<unk>", ",", *sorted(words())])}
)

_WORDS = {index: word for word, index in VOCABULARY.items()}


class UnknownWordError(ValueError):
    """A prompt has a word that no caption has."""


def encode(text: str, length: int = LENGTH) -> list[int]:
    """Token ids of a prompt, its end marked, padded to ``length``; case does not matter.

    Raises:
        UnknownWordError: a word is not in the vocabulary; the message names its nearest.
        ValueError: the prompt is longer.
    """
    pieces = re.findall(r"[^\s,]+|,", text.lower())
    for piece in pieces:
        if piece not in VOCABULARY or piece in ("<pad>", "</s>", "<unk>"):
            near = difflib.get_close_matches(piece, VOCABULARY, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownWordError(f"unknown word {piece!r} in {text!r}{hint}")
    if len(pieces) >= length:
        raise ValueError(f"{len(pieces)} tokens and an end do not fit into {length}: {text!r}")
    ids = [*(VOCABULARY[piece] for piece in pieces), END]
    return ids + [PAD] * (length - len(ids))


def decode(ids: list[int]) -> str:
    """The prompt up to its end, with single spaces.

    Raises:
        ValueError: an id is not in the vocabulary.
    """
    found = []
    for index in ids:
        if index not in _WORDS:
            raise ValueError(f"token {index} is not one of {len(_WORDS)}")
        if index in (PAD, END):
            break
        found.append(_WORDS[index])
    return " ".join(found).replace(" ,", ",")
