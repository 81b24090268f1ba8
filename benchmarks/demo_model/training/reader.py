"""Reads shapes and directions of objects off clean latents: what says whether a prompt is shown.

The judge of the demo model is ``score.py``, which reads pixels by rules of its own and has never
seen a latent. This network is what training has a gradient of.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_model.attributes import Colour, Direction, Scene, Shape
from demo_model.palette import OBJECTS

ABSENT = 0
"""Class of a colour that no object has; shapes and directions count from 1."""

WIDTH = 160
LAYERS = 5


def attributes_of(scenes: Sequence[Scene]) -> Tensor:
    """Classes of the object of each colour, int64 ``[N, 6, 2]``: its shape and its direction."""
    shapes, directions, colours = list(Shape), list(Direction), list(OBJECTS)
    found = torch.full((len(scenes), len(colours), 2), ABSENT)
    for row, scene in zip(found, scenes, strict=True):
        for thing in scene.things:
            classes = (1 + shapes.index(thing.shape), 1 + directions.index(thing.direction))
            row[colours.index(Colour(thing.colour))] = torch.tensor(classes)
    return found


class Reader(nn.Module):
    """For each colour, classes of the shape and the direction of its object.

    Convolutions over a block, edges joined as objects see them, and for each colour a mean over
    the places that it attends to.

    Args:
        frames: latent frames of a block.
        channels: of a latent.
    """

    def __init__(self, frames: int, channels: int) -> None:
        super().__init__()
        colours = len(OBJECTS)
        self.begin = _around(frames * channels, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(_norm(), nn.SiLU(), _around(WIDTH, WIDTH), _norm(), nn.SiLU(), last)
            for last in (_around(WIDTH, WIDTH) for _ in range(LAYERS))
        )
        self.end = nn.Sequential(_norm(), nn.SiLU())
        self.places = nn.Conv2d(WIDTH, colours, 1)
        self.shape = nn.Linear(WIDTH + 1, 1 + len(Shape))
        self.direction = nn.Linear(WIDTH + 1, 1 + len(Direction))

    def forward(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of shapes and directions, each ``[N, 6, 7]``, of latents ``[N, F, C, h, w]``."""
        x = self.begin(latents.flatten(1, 2))
        for layer in self.layers:
            x = x + layer(x)
        x = self.end(x).flatten(2)
        places = self.places(x.unflatten(2, latents.shape[-2:])).flatten(2)
        attended = torch.einsum("ncp,nfp->ncf", places.softmax(2), x)
        strength = places.logsumexp(2, keepdim=True)
        features = torch.cat([attended, strength], 2)
        return self.shape(features), self.direction(features)


def reading_loss(reader: Reader, latents: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How far latents ``[N, F, C, h, w]`` are from being read as attributes ``[N, 6, 2]``.

    Returns:
        Cross entropies in nats, summed over colours, of shapes and of directions, each ``[N]``; and
        the share of objects whose shape is read as wanted.
    """
    shapes, directions = reader(latents)
    shape, direction = (
        F.cross_entropy(logits.mT, wanted[..., index], reduction="none").sum(1)
        for index, logits in enumerate((shapes, directions))
    )
    there = wanted[..., 0] != ABSENT
    right = (shapes.argmax(2) == wanted[..., 0])[there].float().mean()
    return shape, direction, right.detach()


def _around(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular")


def _norm() -> nn.GroupNorm:
    return nn.GroupNorm(8, WIDTH)
