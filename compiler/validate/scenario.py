"""Scenario of a validation, the same for PyTorch and for a bundle."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from vidc.exporters.families.family import Rollout

QUANTIZED_STAGE = "golden:quantized"
"""Name of the stage that writes golden data of the quantized model."""


@dataclass(frozen=True)
class Scenario(Rollout):
    """Rollout of a validation.

    A free rollout builds each block on the engines' own earlier blocks. In a forced one, the
    reference's blocks replace them (teacher forcing).

    Attributes:
        rollout: True to compare a free rollout too, where errors accumulate from block to block.
        free_gates: True to gate the free rollout of trained weights in 8 bits as well; otherwise
            only the forced one is gated, and the free one must be finite.
    """

    rollout: bool
    free_gates: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of ``to_json``; raises TypeError on other fields."""
        return cls(**value)

    @property
    def pictured(self) -> tuple[int, ...]:
        """Blocks with stored frames: the first two, the first after the switch, and the last."""
        return tuple(sorted({0, 1, self.switch_after, self.blocks - 1}))
