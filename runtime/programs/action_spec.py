"""Base class of the parameters of programs whose frames follow actions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.runtime.programs.spec import ProgramSpec


@dataclass(frozen=True)
class Draw:
    """One draw of standard normal noise.

    Attributes:
        name: such as ``denoise.x`` or ``upsample.churn.0``.
        shape: of the drawn tensor.
    """

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class ActionSpec(ProgramSpec):
    """Parameters of a program that takes an action for each frame.

    Attributes:
        past: past frames, and actions, that condition the next frame.
        actions: inputs of an action.
        one_hot: True if exactly one input of an action is 1, False if any may be.
    """

    past: int
    actions: int
    one_hot: bool

    @property
    def movements(self) -> tuple[int, ...]:
        """Inputs of an action that take values from -1 to 1; the others take 0 or 1."""
        return ()

    @property
    def condition_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of an action, ``[inputs]``."""
        return {"action": (self.actions,)}

    def draw_conditions(self, seed: int) -> dict[str, Tensor]:
        """Draws an action, float32 on the CPU."""
        drawn = torch.rand(self.actions, generator=torch.Generator().manual_seed(seed))
        action = (drawn == drawn.max() if self.one_hot else drawn > 0.5).float()
        moves = list(self.movements)
        action[moves] = drawn[moves] * 2 - 1
        return {"action": action}

    @property
    def filling(self) -> int:
        """Frames after which all past frames are generated ones."""
        return self.past

    @property
    def draws(self) -> tuple[Draw, ...]:
        """All draws of a frame, in their order."""
        raise NotImplementedError

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of a frame's noise, ``[1, values]``: its draws flattened, one after the other."""
        return (1, sum(draw.size for draw in self.draws))
