"""Clips to train on, rendered from seeds and encoded while training runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_model.networks import Sizes, new_vae
from demo_model.render import render
from demo_model.stream import Layout
from demo_model.world import Clip, draw_clip, first_frame, tokenize
from vidc.runtime.programs.stream import StreamSpec


@dataclass(frozen=True)
class Codec:
    """A frozen VAE with its latents' statistics, each ``[C, 1, 1]``."""

    vae: nn.Module
    mean: Tensor
    std: Tensor

    @classmethod
    def trained(cls, sizes: Sizes, checkpoint: Mapping[str, Any], device: torch.device) -> "Codec":
        """The VAE of its stage's last checkpoint."""
        vae = new_vae(sizes)
        vae.load_state_dict(checkpoint["ema"])
        facts = torch.tensor([checkpoint["facts"][key] for key in ("mean", "std")], device=device)
        return cls(vae.to(device).eval().requires_grad_(False), *facts[..., None, None])

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


def autocast(device: torch.device) -> torch.autocast:
    """Computes in bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def draw_layout(choose: random.Random, blocks: int, farthest: int) -> Layout:
    """A random layout of clips of so many blocks.

    Half of the layouts begin with the stream; the others are its first block and a stretch that
    ends at a block below ``farthest``, drawn evenly in the logarithm. Three in five switch.
    """
    positions, known = tuple(range(blocks)), 0
    if blocks > 3 and choose.random() < 0.5 and farthest > blocks:
        end = round(blocks * (farthest / blocks) ** choose.random())
        positions, known = (0, *range(end - blocks + 1, end)), 3
    if choose.random() < 0.6 and blocks > 1:
        return Layout(positions, known, choose.randrange(max(1, known), blocks))
    return Layout(positions, known)


@dataclass(frozen=True)
class Shelf:
    """Encoded clips of one layout."""

    layout: Layout
    latents: Tensor  # Normalized, [N, blocks, F, C, h, w].
    shown: Tensor  # Largest share that objects cover in each latent, [N, blocks, F, h, w].
    tokens: Tensor  # Before and after the switch, int64 [N, prompts, L].

    @classmethod
    def drawn(
        cls, choose: random.Random, count: int, layout: Layout, codec: Codec, spec: StreamSpec
    ) -> "Shelf":
        """Renders and encodes random clips."""
        blocks, switch = layout.positions, layout.switch
        at = None if switch is None else first_frame(blocks[switch])
        clips = [draw_clip(choose, False, at) for _ in range(count)]
        # A stretch that begins later is encoded from one block before, which is dropped.
        stretches = [blocks[:1], blocks[1:]] if layout.known else [blocks]
        parts = [encoded(codec, clips, each[0], len(each), spec) for each in stretches]
        latents, shown = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        frames = (0,) if at is None else (0, at)
        captions = [[clip.shown(frame).caption for clip in clips] for frame in frames]
        tokens = torch.stack([tokenize(each) for each in captions], 1)
        return cls(layout, latents, shown, tokens.to(latents.device))


@torch.no_grad()
def encoded(
    codec: Codec, clips: Sequence[Clip], first: int, blocks: int, spec: StreamSpec
) -> tuple[Tensor, Tensor]:
    """Latents and shares of objects of consecutive blocks of clips, as in a ``Shelf``."""
    device, skip = codec.mean.device, spec.block if first else 0
    count = skip + spec.block * blocks
    frames = 4 * (spec.block * first - skip) + torch.arange(4 * count - 3)
    latents, shown = [], []
    at_once = max(1, 840 // len(frames))  # Clips, by the memory that their frames take.
    for at in range(0, len(clips), at_once):
        drawn = [render(clip, frames, spec.video, device) for clip in clips[at : at + at_once]]
        video, mask = (torch.stack(each) for each in zip(*drawn, strict=True))
        with autocast(device):
            latents.append(codec.encode(video)[:, skip:])
        # A latent frame stands for four video frames; the first one of a stream for one.
        mask = torch.cat([mask[:, :1].expand(-1, 3, -1, -1), mask], 1)
        shown.append(F.max_pool3d(mask[:, None], (4, 8, 8))[:, 0, skip:])
    shape = (blocks, spec.block)
    return torch.cat(latents).unflatten(1, shape), torch.cat(shown).unflatten(1, shape)
