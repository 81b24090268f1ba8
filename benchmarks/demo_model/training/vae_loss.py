"""What a reconstruction is asked for: pixels, and edges at three sizes."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SCALES = 3


@dataclass(frozen=True)
class Weights:
    """Of the parts of the loss.

    Attributes:
        l1, square: of the mean absolute and mean square error. The square is what PSNR counts;
            alone it would give up on a texture that it cannot yet place.
        edges: of differences between neighbors, at full, half and quarter size and in time. A
            network that sees textures is not to be had here, and this is where their detail is.
        divergence: of the posterior from a unit normal, small: it leaves a noise of about a tenth
            of the latents' deviation, so that the decoder takes latents that are not exact.
    """

    l1: float = 1.0
    square: float = 4.0
    edges: float = 1.0
    divergence: float = 5e-4


def reconstruction(made: Tensor, asked: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The loss without divergence, and the mean square error, of clips ``[B, 3, T, H, W]``."""
    error = made - asked
    square = error.square().mean()
    loss = weights.l1 * error.abs().mean() + weights.square * square
    return loss + weights.edges * edges(error), square


def edges(error: Tensor) -> Tensor:
    """Mean absolute differences of an error's neighbors, summed over sizes, and over time."""
    total = torch.zeros((), device=error.device)
    if error.shape[2] > 1:
        total = total + error.diff(dim=2).abs().mean()
    for scale in range(SCALES):
        if scale:
            error = F.avg_pool3d(error, (1, 2, 2))
        total = total + error.diff(dim=3).abs().mean() + error.diff(dim=4).abs().mean()
    return total


def psnr(square: float) -> float:
    """Decibels of a mean square error where pixels are in -1..1."""
    return 10 * math.log10(4 / square) if square > 0 else math.inf
