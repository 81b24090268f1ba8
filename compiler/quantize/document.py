"""Schema of ``calibration.json``."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vidc.exporters.families.family import Pass

SCHEMA = 3
DOCUMENT = "calibration.json"
TENSORS = "calibration.safetensors"
TEXTS = "texts"
"""Kind of prompts whose texts are stored."""
MAX_TEXTS = 2**19
"""Limit on their size as JSON, in bytes: half of the document's limit."""


def texts_json(texts: Sequence[str]) -> bytes:
    """Returns prompts as JSON."""
    return json.dumps(texts).encode()


def texts_sha256(texts: Sequence[str]) -> str:
    """Returns the hex digest of prompts, independent of their file."""
    return hashlib.sha256(texts_json(texts)).hexdigest()


@dataclass(frozen=True)
class PromptsNote:
    """Prompts of a calibration.

    Attributes:
        kind: kind as in ``Prompts``.
        count: number of prompts.
        sha256: their hex digest.
        texts: the prompts of kind ``texts`` in order; empty for embeddings, which are too large.

    Raises:
        ValueError: the texts contradict ``kind``, ``count`` or ``sha256``.
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
            raise ValueError("its texts contradict its kind, count and sha256")


@dataclass(frozen=True)
class Rollouts:
    """Method that collected the ranges.

    Attributes:
        method: ``max``, the largest magnitude.
        blocks: number of blocks of each prompt's rollout.
        switch_after: number of blocks before the switch to the next prompt.
    """

    method: str
    blocks: int
    switch_after: int


@dataclass(frozen=True)
class FileNote:
    """Size in bytes and hex SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Document:
    """Calibration without its tensors.

    Attributes:
        schema: version of this schema.
        weights: digest of the transformer's weights, LoRA included, before casting: independent of
            precision and files.
        source: source of the weights, as in a bundle's manifest.
        model: the preset's tables ``model``, ``stream`` and ``sampler``.
        precision: precision of the rollouts.
        device: device type of the rollouts.
        prompts: their prompts.
        seed: seed of their noise.
        recipe: method that collected the ranges.
        groups: groups of passes, in the order of the tensors' first dimension.
        versions: versions of packages.
        tensors: the file of the tensors.

    Raises:
        ValueError: ``model`` has an entry that is not a table, the seed is negative, or there are
            no prompts or no groups.
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
    groups: tuple[Pass, ...]
    versions: dict[str, str]
    tensors: FileNote

    def __post_init__(self) -> None:
        wrong = [name for name, table in self.model.items() if not isinstance(table, dict)]
        if wrong:
            raise ValueError(f"its model.{wrong[0]} is not a table")
        if self.seed < 0 or self.prompts.count < 1 or not self.groups:
            raise ValueError("its seed is negative, or it has no prompts or no groups")
