"""Blocks that follow from histories which the model made itself, with gradients of the last pass.

A stretch of a clip is rolled out as a session does; then each of its steps is taken once more, all
blocks in one forward. No gradient passes through latents, so what a step began with may be taken as
it was.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from demo_model.training.batches import Batch, Networks, flows_of
from demo_model.training.flow import clean_of
from demo_model.training.forward import text_keys_values
from demo_model.training.layout import clip_layout
from demo_model.training.rollout import Stream, few_steps
from demo_model.training.shelves import Shelf
from vidc.runtime.programs.stream import StreamSpec


@dataclass(frozen=True)
class History:
    """What of a clip itself a stretch begins with.

    Attributes:
        prefix: most blocks.
        disturbance: most deviation of the noise on these.
    """

    prefix: int = 3
    disturbance: float = 0.1


@dataclass(frozen=True)
class Continued:
    """What the model made of the rest of each clip.

    Attributes:
        own: how many blocks of the clip itself came before.
        found: clean latents of every block after these at a level of its own, with gradients,
            ``[B, N, F, C, h, w]``.
        last: the last block as the rollout left it, ``[B, F, C, h, w]``.
    """

    own: int
    found: Tensor
    last: Tensor


def continued(
    student: Networks,
    spec: StreamSpec,
    history: History,
    shelf: Shelf,
    batch: Batch,
    levels: Sequence[float],
    choose: random.Random,
    draw: torch.Generator,
) -> Continued:
    """Goes on from clips' first blocks to their ends.

    Args:
        student: whose gradients are wanted.
        spec: of the stream.
        history: see there.
        shelf: of the batch.
        batch: of clips.
        levels: of the sampler's steps. Half of the blocks are found at the last one, which decides
            what is seen; the others at an earlier one, which decides what the last one gets.
        choose: of how many blocks are the clip's own.
        draw: of everything else.
    """
    positions, switch = shelf.layout.positions, shelf.layout.switch
    # The clip's own blocks end where a stretch may begin: a far one needs its whole ring.
    own = choose.randrange(1, history.prefix + 1)
    own = min(max(shelf.layout.noisy_from, own), len(positions) - 1)
    shares = torch.rand(len(batch.latents), generator=draw, device=draw.device)
    deviation = history.disturbance * shares.view(-1, 1, 1, 1, 1, 1)
    given = batch.latents[:, :own]
    given = given + deviation * normal(given.shape, draw)
    text = text_keys_values(student.transformer, student.embeds(batch.prompts))
    stream = Stream(student, spec, text)
    blocks, begun = _rolled_out(stream, given, positions, switch, levels, draw)

    layout = clip_layout(positions, spec, switch, own).tensors(draw.device)
    chances = torch.full((len(levels),), 0.5 / max(1, len(levels) - 1), device=draw.device)
    chances[-1] = 0.5
    shape = (len(blocks), len(positions) - own)
    chosen = torch.multinomial(chances, shape[0] * shape[1], replacement=True, generator=draw)
    chosen = chosen.view(shape)
    noisy = begun.take_along_dim(chosen[None, ..., None, None, None, None], 0)[0]
    level = torch.tensor(levels, device=draw.device)[chosen]
    found = clean_of(noisy, flows_of(student, layout, blocks, noisy, level, text), level)
    return Continued(own, found, blocks[:, -1])


@torch.no_grad()
def _rolled_out(
    stream: Stream,
    given: Tensor,
    positions: Sequence[int],
    switch: int | None,
    levels: Sequence[float],
    draw: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Blocks ``[B, N, F, C, h, w]``, and what each step began with of those not given.

    The latter ``[S, B, N - given, F, C, h, w]``.
    """
    blocks = list(given.unbind(1))
    begun = []
    for index, block in enumerate(positions):
        if index == switch:
            stream.switch_prompt(block)
        if index >= given.shape[1]:
            noise = normal(torch.Size((len(levels), *blocks[0].shape)), draw)
            steps = few_steps(stream, noise, levels, block)
            begun.append(torch.stack([latent for latent, _ in steps]))
            blocks.append(steps[-1][1])
        if index + 1 < len(positions):
            stream.remember(blocks[index], block)
    return torch.stack(blocks, 1), torch.stack(begun, 2)


def normal(shape: torch.Size, draw: torch.Generator) -> Tensor:
    """Unit normal noise on a generator's device."""
    return torch.randn(shape, generator=draw, device=draw.device)
