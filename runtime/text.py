"""Text prompts: a bundle's tokenizer and text encoder."""

import html
import warnings
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vidc.plugins.errors import GateError
from vidc.plugins.names import TOKENIZER
from vidc.runtime.engines import Engine
from vidc.runtime.states import Buffers, States

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_SHOWN = 40


class TextEncoder:
    """Encodes text as embeddings.

    Args:
        engine: takes ``input_ids`` and ``attention_mask``, returns ``text_embeds``.
        tokenizer: see ``PromptTokenizer``.
        device: of the engine's buffers.
    """

    def __init__(self, engine: Engine, tokenizer: bytes, device: torch.device) -> None:
        self._engine = engine
        self._tokenizer = PromptTokenizer(tokenizer, engine.signature["input_ids"].shape[1])
        self._buffers = Buffers(engine.signature, device)
        self._states = States((engine.signature,), device)

    def __call__(self, text: str) -> Tensor:
        """Returns embeddings of a text, float32 ``[1, L, E]``, zero at padding positions.

        The tensor is valid until the next call.

        Raises:
            GateError: ``VIDC-BUNDLE-TOKENIZER``.
        """
        self._buffers.set(self._tokenizer(text))
        self._engine.run(self._buffers, self._states)
        return self._buffers["text_embeds"]


class PromptTokenizer:
    """Tokenizes text for a text encoder.

    Args:
        data: a bundle's ``tokenizer.json``, which defines end token, truncation and padding. It is
            parsed at the first text, so embeddings do not need the tokenizers library.
        length: tokens of a text, L.
    """

    def __init__(self, data: bytes, length: int) -> None:
        self._data = data
        self._length = length

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self._data.decode())
        except Exception as error:
            # The tokenizers library raises plain exceptions.
            raise _refusal(f"cannot be read: {error}") from error
        found = len(tokenizer.encode("").ids)
        if found != self._length:
            problem = f"makes {found} tokens of a text, the engine takes {self._length}"
            raise _refusal(problem)
        return tokenizer

    def __call__(self, text: str) -> dict[str, Tensor]:
        """Returns ``input_ids`` and ``attention_mask``, int64 ``[1, L]``; the text may be empty.

        A text of more tokens is cut, with a UserWarning that says where.

        Raises:
            GateError: ``VIDC-BUNDLE-TOKENIZER``, not a tokenizer, or one of another length.
        """
        text = clean(text)
        encoded = self._tokenizer.encode(text)
        if encoded.overflowing:
            warnings.warn(_cut(text, encoded), stacklevel=3)
        return {
            "input_ids": torch.tensor([encoded.ids]),
            "attention_mask": torch.tensor([encoded.attention_mask]),
        }


def clean(text: str) -> str:
    """Cleans a prompt as Wan does: repairs text, resolves entities, collapses whitespace."""
    import ftfy

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


def _cut(text: str, encoded: "Encoding") -> str:
    """Says how many tokens of a text were dropped, and where it was cut."""
    places = zip(encoded.offsets, encoded.special_tokens_mask, strict=True)
    kept = [end for (_, end), special in places if not special]
    dropped = sum(part.special_tokens_mask.count(0) for part in encoded.overflowing)
    at = max(kept, default=0)
    return (
        f"the prompt is cut after {len(kept)} of {len(kept) + dropped} tokens: "
        f"{text[max(0, at - _SHOWN) : at]!r} is kept, "
        f"{text[at : at + _SHOWN].strip()!r} and what follows is not"
    )


def _refusal(problem: str) -> GateError:
    return GateError(
        "VIDC-BUNDLE-TOKENIZER",
        f"{TOKENIZER} {problem}",
        "build the bundle again, or copy it again from where it was built",
    )
