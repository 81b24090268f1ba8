"""Training clips, drawn by number: pixels on the device, prompts as tokens. Never held-out ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from demo_model.clip import Clip, frames_of
from demo_model.split import Split, sample
from demo_model.switch import sample_switch
from demo_model.tokens import PAD, encode

FARTHEST = 4000
"""Frames; clips that the VAE is trained on begin anywhere before."""


@dataclass(frozen=True)
class Prompted:
    """Clips that share a stretch of time, with their prompts.

    Attributes:
        clips: to be rendered.
        captions: of each clip, before and after its switch; twice the same without one.
    """

    clips: Sequence[Clip]
    captions: Sequence[tuple[str, str]]


def numbered(first: int, count: int, switch_frame: int | None = None) -> Prompted:
    """Training clips ``first`` to ``first + count``.

    Args:
        first: a number; no two calls of a training should share one.
        count: how many.
        switch_frame: the first frame under another prompt; none where the prompt stays.
    """
    indices = range(first, first + count)
    if switch_frame is None:
        examples = [sample(Split.TRAIN, i) for i in indices]
        return Prompted([e.clip for e in examples], [(e.caption, e.caption) for e in examples])
    switches = [sample_switch(Split.TRAIN, i) for i in indices]
    return Prompted([s.clip(switch_frame) for s in switches], [s.captions for s in switches])


def for_vae(step: int, batch: int, latents: int, seed: int) -> tuple[Prompted, int, int]:
    """The clips of a step of VAE training, their first frame, and how many frames.

    They begin at a latent frame's last video frame, as a stream does at 0. Every third step shows
    objects that change, which a stream shows for eight frames after a switch.
    """
    draw = random.Random(f"vae {seed} {step}")
    first = 4 * draw.randrange(FARTHEST // 4)
    frames = frames_of(latents)
    switch = max(1, first + draw.randrange(-6, frames - 1)) if step % 3 == 2 else None
    return numbered((seed * 7919 + step) * batch, batch, switch), first, frames


def tokens_of(captions: Sequence[str], length: int, device: torch.device | str) -> Tensor:
    """Token ids, int64 ``[N, L]``."""
    return torch.tensor([encode(caption, length) for caption in captions]).to(device)


def mask_of(tokens: Tensor) -> Tensor:
    """What of the tokens is no padding, int64 of the same shape."""
    return (tokens != PAD).long()
