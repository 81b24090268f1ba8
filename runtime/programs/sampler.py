"""Steps of an EDM sampler whose network predicts v, as one affine update each."""

import math
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplerStep:
    """Coefficients of one step from noise level ``s`` to the next one, ``s'``.

    A step is ``keep x + change v + fresh z`` with the latent x, the prediction v and standard
    normal noise z. The denoised latent is ``x0 = x / (s^2 + 1) - s / sqrt(s^2 + 1) v``:
    v-prediction with variance-exploding scaling, as in Stability-AI's generative-models.

    Attributes:
        timestep: ``0.25 log(s)``, an input of the network.
        keep: factor of the latent.
        change: factor of the prediction.
        fresh: factor of the noise.
        scale: ``1 / sqrt(s'^2 + 1)``, factor of the new latent as the next step's input.
    """

    timestep: float
    keep: float
    change: float
    fresh: float
    scale: float

    @classmethod
    def euler(cls, sigma: float, following: float) -> Self:
        """Returns ``x + (s' - s) (x - x0) / s``: algorithm 2 of Karras et al. 2022, no noise."""
        square = sigma * sigma + 1
        keep = 1 + (following - sigma) * sigma / square
        return cls._made(sigma, following, keep, (following - sigma) / math.sqrt(square), 0.0)

    @classmethod
    def consistency(cls, sigma: float, following: float) -> Self:
        """Returns ``x0 + s' z``: algorithm 1 of Song et al. 2023, Consistency Models."""
        square = sigma * sigma + 1
        return cls._made(sigma, following, 1 / square, -sigma / math.sqrt(square), following)

    @classmethod
    def _made(
        cls, sigma: float, following: float, keep: float, change: float, fresh: float
    ) -> Self:
        scale = 1 / math.sqrt(following * following + 1)
        return cls(0.25 * math.log(sigma), keep, change, fresh, scale)


def step_table(sigmas: tuple[float, ...], fresh_noise: bool, device: torch.device) -> Tensor:
    """Returns the steps' coefficients, float32 ``[steps, 5]``, in the order of ``SamplerStep``.

    Args:
        sigmas: noise level before each step, and 0.
        fresh_noise: True for a consistency model's steps, False for Euler steps.
        device: of the table.
    """
    make = SamplerStep.consistency if fresh_noise else SamplerStep.euler
    rows = [astuple(make(*pair)) for pair in pairwise(sigmas)]
    return torch.tensor(rows, dtype=torch.float32, device=device)
