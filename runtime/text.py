"""Prompts as text: tokenizer and text encoder of a bundle."""

import html
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vidc.runtime.engines import Engine
from vidc.runtime.states import Buffers, States


class TextEncoder:
    """Turns a text into the embeddings that ``text_kv`` takes."""

    def __init__(self, engine: Engine, tokenizer: Path, device: torch.device) -> None:
        self._engine = engine
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._buffers = Buffers(engine.signature, device)
        self._states = States((engine.signature,), device)
        length = engine.signature["input_ids"].shape[1]
        self._tokenizer.enable_truncation(length)
        self._tokenizer.enable_padding(length=length, pad_id=0)

    def __call__(self, text: str) -> Tensor:
        """Embeddings of a text, float32 ``[1, L, E]``; positions of the padding are zero."""
        encoded = self._tokenizer.encode(clean(text))
        self._buffers.set(
            {
                "input_ids": torch.tensor([encoded.ids]),
                "attention_mask": torch.tensor([encoded.attention_mask]),
            }
        )
        self._engine.run(self._buffers, self._states)
        return self._buffers["text_embeds"]


def clean(text: str) -> str:
    """A prompt as Wan's encoder was trained on it: HTML entities resolved, white space single."""
    return " ".join(html.unescape(html.unescape(text)).split())
