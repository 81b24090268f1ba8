"""Euler steps of an EDM sampler whose network predicts v, as one affine update each."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class EulerStep:
    """Coefficients of one step from noise level ``s`` to the next one.

    With a latent x and a prediction v, the denoised latent is
    ``x0 = x / (s^2 + 1) - s / sqrt(s^2 + 1) v`` and the step is ``x + (s' - s) (x - x0) / s``
    (Karras et al. 2022, algorithm 2 without noise; v-prediction with variance-exploding scaling as
    in Stability-AI's generative-models), which is ``keep x + change v``.

    Attributes:
        timestep: ``0.25 log(s)``, what the network is told.
        keep: factor of the latent.
        change: factor of the prediction.
        scale: ``1 / sqrt(s'^2 + 1)``, factor of the new latent as the next step's input.
    """

    timestep: float
    keep: float
    change: float
    scale: float

    @classmethod
    def between(cls, sigma: float, following: float) -> "EulerStep":
        """Returns the step between two noise levels."""
        square = sigma * sigma + 1
        return cls(
            0.25 * math.log(sigma),
            1 + (following - sigma) * sigma / square,
            (following - sigma) / math.sqrt(square),
            1 / math.sqrt(following * following + 1),
        )


def step_table(sigmas: tuple[float, ...], device: torch.device) -> Tensor:
    """Returns the steps' coefficients, float32 ``[steps, 4]``, in the order of ``EulerStep``."""
    steps = [EulerStep.between(*pair) for pair in pairwise(sigmas)]
    rows = [[step.timestep, step.keep, step.change, step.scale] for step in steps]
    return torch.tensor(rows, dtype=torch.float32, device=device)
