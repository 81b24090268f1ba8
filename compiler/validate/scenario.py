"""What a validation plays: the same for PyTorch, which makes the golden data, and for a bundle."""

from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Scenario:
    """How long a rollout is, and when its prompt is switched.

    Attributes:
        blocks: of the rollout.
        switch_after: blocks before the switch.
        recache: frame counts of the ``recache`` components, each of which is called.
        rollout: whether errors are also followed from block to block, not only call by call.
    """

    blocks: int
    switch_after: int
    recache: tuple[int, ...]
    rollout: bool

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of ``to_json``."""
        return cls(**(value | {"recache": tuple(value["recache"])}))

    @property
    def pictured(self) -> tuple[int, ...]:
        """Blocks whose decoded frames are kept: the first two, the switched one, the last."""
        return tuple(sorted({0, 1, self.switch_after, self.blocks - 1}))
