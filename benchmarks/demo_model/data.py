"""Clips to train on, rendered and encoded while training runs, from seeds alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_model.networks import Sizes
from demo_model.render import render
from demo_model.tokens import encode as tokenize
from demo_model.world import Clip, draw_scene, draw_switch, first_frame


@dataclass(frozen=True)
class Codec:
    """A frozen VAE with its latents' statistics, each ``[C, 1, 1]``."""

    vae: nn.Module
    mean: Tensor
    std: Tensor

    def encode(self, frames: Tensor) -> Tensor:
        """Frames ``[B, 3, 4F - 3, H, W]`` to normalized latents ``[B, F, C, h, w]``."""
        mean, _ = encode(self.vae, frames)
        return ((mean.transpose(1, 2) - self.mean) / self.std).contiguous()

    def decode(self, latents: Tensor) -> Tensor:
        """The inverse of ``encode``."""
        return decode(self.vae, (latents * self.std + self.mean).transpose(1, 2))


def encode(vae: nn.Module, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log variance of latents, float32 ``[B, C, F, h, w]``, streamed as vidc does."""
    moments = vae.get_submodule("quant_conv")(_streamed(vae.get_submodule("encoder"), frames))
    mean, log_variance = moments.float().chunk(2, 1)
    return mean, log_variance.clamp(-30, 20)


def decode(vae: nn.Module, latents: Tensor) -> Tensor:
    """Latents ``[B, C, F, h, w]`` to frames, float32 ``[B, 3, 4F - 3, H, W]``, not clamped."""
    hidden = vae.get_submodule("post_quant_conv")(latents)
    return _streamed(vae.get_submodule("decoder"), hidden).float()


def _streamed(network: nn.Module, x: Tensor) -> Tensor:
    memory: list[Any] = [None] * sum(1 for _ in network.modules())
    chunks = x.tensor_split([1], dim=2) if x.shape[2] > 1 else (x,)
    return torch.cat([network(c, feat_cache=memory, feat_idx=[0]) for c in chunks], 2)


def statistics(latents: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel of latents ``[B, C, F, h, w]``.

    A channel that carries nothing is not blown up to unit variance.
    """
    flat = latents.transpose(0, 1).flatten(1)
    std = flat.std(1)
    return flat.mean(1), std.clamp_min(0.1 * float(std.max()))


def draw_clip(choose: random.Random, at: int | None = None) -> Clip:
    """A clip for training, with a prompt switch at frame ``at`` if it is given."""
    scene = draw_scene(choose, held_out=False)
    if at is None:
        return Clip(scene)
    return Clip(scene, draw_switch(scene, choose, held_out=False), at)


@dataclass(frozen=True)
class Shelf:
    """Encoded clips of one layout."""

    latents: Tensor  # Normalized, [N, blocks, F, C, h, w].
    shown: Tensor  # Largest share that objects cover in each latent, [N, blocks, F, h, w].
    tokens: Tensor  # Before and after the switch, int64 [N, prompts, L].
    known: int  # Blocks that are given; the others are to be generated.
    positions: tuple[int, ...]  # Absolute blocks.
    switch: int | None  # Index of the first block under the second prompt.

    def batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Latents, shares of objects and tokens of ``size`` different clips, or of all."""
        rows = torch.randperm(len(self.latents), generator=draw, device=draw.device)[:size]
        return self.latents[rows].float(), self.shown[rows], self.tokens[rows]


def draw_shelf(
    sizes: Sizes, codec: Codec, choose: random.Random, count: int, blocks: int, farthest: int
) -> Shelf:
    """Renders and encodes ``count`` clips of one random layout.

    Half of the layouts begin with the stream; the others are its first block and a stretch that
    ends at a block below ``farthest``, drawn evenly in the logarithm. Three in five switch.
    """
    positions, known = tuple(range(blocks)), 0
    if blocks > 3 and choose.random() < 0.5 and farthest > blocks:
        end = round(blocks * (farthest / blocks) ** choose.random())
        positions, known = (0, *range(end - blocks + 1, end)), min(3, blocks - 1)
    switch = (
        choose.randrange(max(1, known), blocks) if choose.random() < 0.6 and blocks > 1 else None
    )
    at = None if switch is None else first_frame(positions[switch])
    clips = [draw_clip(choose, at) for _ in range(count)]
    parts = [encoded(sizes, codec, clips, 0, blocks if not known else 1)]
    if known:
        parts.append(encoded(sizes, codec, clips, positions[1], blocks - 1))
    latents, shown = (torch.cat(part, 1) for part in zip(*parts, strict=True))
    scenes = [[clip.scene] if clip.later is None else [clip.scene, clip.later] for clip in clips]
    tokens = torch.stack([tokenize([scene.caption for scene in both]) for both in scenes])
    return Shelf(latents, shown, tokens.to(latents.device), known, positions, switch)


@torch.no_grad()
def encoded(
    sizes: Sizes, codec: Codec, clips: Sequence[Clip], first: int, blocks: int
) -> tuple[Tensor, Tensor]:
    """Latents and shares of objects of consecutive blocks of clips, as in a ``Shelf``.

    A stretch that begins later is encoded from one block before, which is dropped.
    """
    stream, device = sizes.stream, codec.mean.device
    begin = stream.block * max(0, first - 1)
    skip = stream.block if first else 0
    count = skip + stream.block * blocks
    frames = 4 * begin + torch.arange(4 * count - 3)
    latents, shown = [], []
    at_once = max(1, 840 // len(frames))  # Clips, by the memory that their frames take.
    for at in range(0, len(clips), at_once):
        some = clips[at : at + at_once]
        video, mask = render(some, frames.expand(len(some), -1), sizes.stream.video, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            latents.append(codec.encode(video)[:, skip:])
        # A latent frame stands for four video frames; the first one of a stream for one.
        mask = torch.cat([mask[:, :1].expand(-1, 3, -1, -1), mask], 1)
        mask = F.max_pool3d(mask[:, None], (4, 8, 8))[:, 0]
        shown.append(mask[:, skip:])
    shape = (blocks, stream.block)
    return torch.cat(latents).unflatten(1, shape), torch.cat(shown).unflatten(1, shape)
