"""Scenario of a validation, the same for PyTorch and for a bundle."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from vidc.exporters.families.family import Rollout

QUANTIZED_STAGE = "golden:quantized"
"""The stage of a build that writes golden data for a model in 8 bits."""


@dataclass(frozen=True)
class Scenario(Rollout):
    """Rollout of a validation.

    Attributes:
        rollout: whether errors are also followed from block to block, not only call by call.
    """

    rollout: bool

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of ``to_json``; raises TypeError on other fields."""
        return cls(**value)

    @property
    def pictured(self) -> tuple[int, ...]:
        """Blocks whose decoded frames are kept: the first two, the switched one, the last."""
        return tuple(sorted({0, 1, self.switch_after, self.blocks - 1}))
