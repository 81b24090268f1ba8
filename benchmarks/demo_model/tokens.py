"""The closed vocabulary of captions as a tokenizer that vidc's runtime reads."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from demo_model import world

LENGTH = 32
"""Tokens of every caption; the longest one has 29 with its end."""
PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
PAD_ID, END_ID = 0, 1


def vocabulary() -> list[str]:
    """Every token, in the order of their ids."""
    things = (world.COLORS, world.SHAPES, world.RADII, world.DIRECTIONS, world.MANNERS)
    tables = (*things, world.PERIODS, world.PLACES, world.GROUNDS, world.LIGHTS)
    words = {word for table in tables for entry in table for word in entry.split()}
    return [PAD, END, UNKNOWN, *sorted(words | {"a", "and", "from", "over"})]


def tokenizer() -> Tokenizer:
    """Returns the tokenizer: one token a word, and the end of the text."""
    ids = {word: index for index, word in enumerate(vocabulary())}
    made = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, END_ID)]
    )
    return made


def encode(captions: Sequence[str]) -> Tensor:
    """Captions to tokens, int64 ``[len(captions), LENGTH]``."""
    made = tokenizer()
    made.enable_padding(length=LENGTH, pad_id=PAD_ID, pad_token=PAD)
    return torch.tensor([encoded.ids for encoded in made.encode_batch(list(captions))])
