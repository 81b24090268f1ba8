"""Clips to train on, rendered from seeds and encoded while training runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor, nn
from torch.nn.functional import max_pool3d

from demo_model.networks import Sizes, new_vae
from demo_model.render import render
from demo_model.stream import Layout, Streams
from demo_model.world import Clip, draw_clip, first_frame, tokenize
from vidc.runtime.programs.stream import StreamSpec


@dataclass(frozen=True)
class Codec:
    """A frozen VAE, the sizes of its streams and its latents' statistics, each ``[C, 1, 1]``."""

    vae: nn.Module
    spec: StreamSpec
    mean: Tensor
    std: Tensor

    @classmethod
    def trained(cls, sizes: Sizes, checkpoint: Mapping[str, Any], device: torch.device) -> "Codec":
        """The VAE of its stage's last checkpoint."""
        vae = new_vae(sizes)
        vae.load_state_dict(checkpoint["ema"])
        facts = torch.tensor([checkpoint["facts"][key] for key in ("mean", "std")], device=device)
        vae.to(device).eval().requires_grad_(False)
        return cls(vae, sizes.stream, *facts[..., None, None])

    def encode(self, frames: Tensor) -> Tensor:
        """Frames ``[B, 3, 4F - 3, H, W]`` to normalized latents ``[B, F, C, h, w]``."""
        latents: Tensor = encode(self.vae, frames).mean.transpose(1, 2)
        return ((latents - self.mean) / self.std).contiguous()

    def decode(self, latents: Tensor) -> Tensor:
        """The inverse of ``encode``."""
        return decode(self.vae, (latents * self.std + self.mean).transpose(1, 2))


def encode(vae: nn.Module, frames: Tensor) -> DiagonalGaussianDistribution:
    """Distribution of latents, float32 ``[B, C, F, h, w]``, streamed as vidc does."""
    moments = vae.get_submodule("quant_conv")(_streamed(vae.get_submodule("encoder"), frames))
    return DiagonalGaussianDistribution(moments.float())


def decode(vae: nn.Module, latents: Tensor) -> Tensor:
    """Latents ``[B, C, F, h, w]`` to frames, float32 ``[B, 3, 4F - 3, H, W]``, not clamped."""
    hidden = vae.get_submodule("post_quant_conv")(latents)
    return _streamed(vae.get_submodule("decoder"), hidden).float()


def _streamed(network: nn.Module, x: Tensor) -> Tensor:
    memory: list[Any] = [None] * sum(1 for _ in network.modules())
    chunks = x.tensor_split([1], dim=2)  # The first frame, and all later ones.
    return torch.cat([network(c, feat_cache=memory, feat_idx=[0]) for c in chunks], 2)


def autocast(device: torch.device) -> torch.autocast:
    """Computes in bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def draw_layout(choose: random.Random, blocks: int, farthest: int) -> Layout:
    """A random layout of clips of so many blocks.

    Half of the layouts are the stream's first blocks. The others are its first block and a later
    stretch, whose first two blocks are given too; the stretch ends at a block below ``farthest``,
    drawn evenly in the logarithm. Nine in ten switch.
    """
    positions, known, switch = tuple(range(blocks)), 0, None
    if blocks > 3 and choose.random() < 0.5 and farthest > blocks:
        end = round(blocks * (farthest / blocks) ** choose.random())
        positions, known = (0, *range(end - blocks + 1, end)), 3
    if choose.random() < 0.9 and blocks > 1:
        switch = choose.randrange(max(1, known), blocks)
    return Layout(positions, known, switch)


def draw_switch(choose: random.Random, at: int) -> Clip:
    """A random clip with a prompt switch; two in three turn an object, which is harder.

    Of switches of ``draw_clip``, one in three does, since two objects must keep a common axis.
    """
    plain = choose.random() < 0.5  # Any switch will do.
    while True:
        clip = draw_clip(choose, False, at)
        pairs = zip(clip.scene.things, clip.shown(at).things, strict=True)
        if plain or any(old.direction != new.direction for old, new in pairs):
            return clip


@dataclass(frozen=True)
class Shelf:
    """Encoded clips of one layout."""

    streams: Streams  # Passes over a clip of this layout.
    latents: Tensor  # Normalized, [N, blocks, F, C, h, w].
    shown: Tensor  # Largest share that objects cover in each latent, [N, blocks, F, h, w].
    tokens: Tensor  # Before and after the switch, int64 [N, prompts, L].

    @classmethod
    def drawn(
        cls, choose: random.Random, codec: Codec, farthest: int, blocks: int, count: int
    ) -> "Shelf":
        """Renders and encodes random clips of so many blocks, in a layout of ``draw_layout``."""
        layout = draw_layout(choose, blocks, farthest)
        positions, streams = layout.positions, Streams(layout, codec.spec, codec.mean.device)
        at = None if layout.switch is None else first_frame(positions[layout.switch])
        draw = partial(draw_clip, choose, False) if at is None else partial(draw_switch, choose, at)
        clips = [draw() for _ in range(count)]
        # A stretch that begins later is encoded from one block before, which is dropped.
        stretches = [positions[:1], positions[1:]] if layout.known else [positions]
        parts = [encoded(codec, clips, each[0], len(each)) for each in stretches]
        latents, shown = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        frames = (0,) if at is None else (0, at)
        captions = [[clip.shown(frame).caption for clip in clips] for frame in frames]
        tokens = torch.stack([tokenize(each) for each in captions], 1)
        return cls(streams, latents, shown, tokens.to(latents.device))


@torch.no_grad()
def encoded(codec: Codec, clips: Sequence[Clip], first: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Latents and shares of objects of consecutive blocks of clips, as in a ``Shelf``."""
    device, spec = codec.mean.device, codec.spec
    skip = spec.block if first else 0
    count = skip + spec.block * blocks
    frames = 4 * (spec.block * first - skip) + torch.arange(4 * count - 3)
    latents, shown = [], []
    at_once = max(1, 840 // len(frames))  # Clips, by the memory that their frames take.
    for at in range(0, len(clips), at_once):
        video, mask = render(clips[at : at + at_once], frames, spec.video, device)
        with autocast(device):
            latents.append(codec.encode(video)[:, skip:])
        # A latent frame stands for four video frames; the first one of a stream for one.
        mask = torch.cat([mask[:, :1].expand(-1, 3, -1, -1), mask], 1)
        shown.append(max_pool3d(mask[:, None], (4, 8, 8))[:, 0, skip:])
    shape = (blocks, spec.block)
    return torch.cat(latents).unflatten(1, shape), torch.cat(shown).unflatten(1, shape)
