"""What a calibration says of itself: `calibration.json`."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vidc.compiler.quantize.groups import Group

SCHEMA = 3
DOCUMENT = "calibration.json"
TENSORS = "calibration.safetensors"
TEXTS = "texts"
"""The kind of prompts that are kept."""
MAX_TEXTS = 2**19
"""Bytes of all of them as JSON: half of what is read of the document."""


def texts_json(texts: Sequence[str]) -> bytes:
    """Prompts as the document has them."""
    return json.dumps(texts).encode()


def texts_sha256(texts: Sequence[str]) -> str:
    """Hex digest of prompts, whatever file they came in."""
    return hashlib.sha256(texts_json(texts)).hexdigest()


@dataclass(frozen=True)
class PromptsNote:
    """What it was prompted with.

    Attributes:
        kind: as of ``Prompts``.
        count: how many.
        sha256: their digest.
        texts: of kind ``texts`` all of them in their order; none of the others, whose embeddings
            are too large to keep.

    Raises:
        ValueError: the texts are not those that ``kind``, ``count`` and ``sha256`` say.
    """

    kind: str
    count: int
    sha256: str
    texts: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.kind != TEXTS:
            wrong = bool(self.texts)
        else:
            wrong = (len(self.texts), texts_sha256(self.texts)) != (self.count, self.sha256)
        if wrong:
            raise ValueError("its texts are not those of its kind, count and sha256")


@dataclass(frozen=True)
class Rollouts:
    """How its ranges were found.

    Attributes:
        method: ``max``: the largest of all that was seen.
        blocks: of each prompt's rollout.
        switch_after: of them, how many precede the switch to the next prompt.
    """

    method: str
    blocks: int
    switch_after: int


@dataclass(frozen=True)
class FileNote:
    """Bytes and hex SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Document:
    """A calibration without its tensors.

    Attributes:
        schema: of this document.
        weights: digest of the transformer's weights before they were cast, LoRA included: the
            same for every precision, and whatever files they came in.
        source: where they came from, as a bundle's manifest says it.
        model: the preset's tables ``model``, ``stream`` and ``sampler``.
        precision: that the rollouts ran in.
        device: type of what they ran on.
        prompts: what they were prompted with.
        seed: of their noise.
        recipe: what was run.
        groups: of passes, in the order of the tensors' first dimension.
        versions: of what made it, by package.
        tensors: the other file.

    Raises:
        ValueError: ``model`` holds something that is no table, the seed is below 0, or there are no
            prompts or no groups.
    """

    schema: int
    weights: str
    source: dict[str, Any]
    model: dict[str, Any]
    precision: str
    device: str
    prompts: PromptsNote
    seed: int
    recipe: Rollouts
    groups: tuple[Group, ...]
    versions: dict[str, str]
    tensors: FileNote

    def __post_init__(self) -> None:
        wrong = [name for name, table in self.model.items() if not isinstance(table, dict)]
        if wrong:
            raise ValueError(f"its model.{wrong[0]} is no table")
        if self.seed < 0 or self.prompts.count < 1 or not self.groups:
            raise ValueError("its seed is below 0, or it has no prompts or no groups")
