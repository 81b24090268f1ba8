"""What a calibration says of itself: `calibration.json`."""

from dataclasses import dataclass
from typing import Any

from vidc.compiler.calibrate.groups import Group

SCHEMA = 2
DOCUMENT = "calibration.json"
TENSORS = "calibration.safetensors"


@dataclass(frozen=True)
class PromptsNote:
    """What it was prompted with: ``kind`` as of ``Prompts``, how many, and their digest."""

    kind: str
    count: int
    sha256: str


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
