"""Layers of DIAMOND's UNet, with the names that its checkpoints give their weights.

The architecture is that of "Diffusion for World Modeling: Visual Details Matter in Atari"
(arXiv 2405.12399), in the sizes of its csgo branch.
"""

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidc.exporters.parts.diamond_unet.config import ResidualSizes, groups, heads

EPS = 1e-5
"""Added to the variance in every group norm."""


class GroupNorm(nn.Module):
    """Group norm with a scale and shift of its own, under the name ``norm``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups(channels), channels, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes ``[B, C, h, w]``."""
        return cast(Tensor, self.norm(x))


class AdaptiveGroupNorm(nn.Module):
    """Group norm whose scale and shift are given. It has no weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.groups = groups(channels)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Normalizes ``[B, C, h, w]``.

        Args:
            x: of any float dtype.
            modulation: scale and shift, ``[B, 2 C]``.
        """
        scale, shift = modulation[:, :, None, None].chunk(2, dim=1)
        return functional.group_norm(x, self.groups, eps=EPS) * (1 + scale) + shift


class Attention(nn.Module):
    """Self-attention over all positions of a feature map, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = heads(channels)
        self.norm = GroupNorm(channels)
        self.qkv_proj = nn.Conv2d(channels, 3 * channels, 1)
        self.out_proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]`` to the same shape."""
        batch, channels, height, width = x.shape
        # Heads of 8 channels: plain matmuls are as fast as fused attention kernels.
        split = self.qkv_proj(self.norm(x)).view(
            batch, 3, self.heads, channels // self.heads, height * width
        )
        queries, keys, values = split.transpose(3, 4).unbind(1)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(channels // self.heads)
        attended = (scores.softmax(dim=-1) @ values).transpose(2, 3)
        return x + cast(Tensor, self.out_proj(attended.reshape(x.shape)))


class ResidualBlock(nn.Module):
    """Two modulated convolutions beside a shortcut, then attention if the level has it."""

    def __init__(self, sizes: ResidualSizes) -> None:
        super().__init__()
        inputs, outputs = sizes.inputs, sizes.outputs
        self.proj = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)
        self.norm1 = AdaptiveGroupNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = AdaptiveGroupNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.attn = Attention(outputs) if sizes.attention else nn.Identity()

    def forward(self, x: Tensor, modulation: Iterator[Tensor]) -> Tensor:
        """Maps ``[B, C, h, w]`` to ``[B, C', h, w]``.

        Args:
            x: input.
            modulation: gives the scale and shift of each norm, in the order in which they run.
        """
        hidden = self.conv1(functional.silu(self.norm1(x, next(modulation))))
        hidden = self.conv2(functional.silu(self.norm2(hidden, next(modulation))))
        return cast(Tensor, self.attn(hidden + self.proj(x)))


class Level(nn.Module):
    """Residual blocks at one resolution, one way."""

    def __init__(self, sizes: tuple[ResidualSizes, ...]) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList([ResidualBlock(each) for each in sizes])

    def forward(
        self, x: Tensor, modulation: Iterator[Tensor], skips: list[Tensor] | None = None
    ) -> list[Tensor]:
        """Returns the result of each block, the last one's last.

        Args:
            x: input of the first block.
            modulation: as in ``ResidualBlock``.
            skips: stack of earlier results; each block takes off the last one and concatenates it
                to its input. None for blocks without skip connections.
        """
        made = []
        for block in self.resblocks:
            if skips is not None:
                x = torch.cat([x, skips.pop()], dim=1)
            x = block(x, modulation)
            made.append(x)
        return made


class Downsample(nn.Module):
    """Halves height and width with a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]`` to ``[B, C, h/2, w/2]``."""
        return cast(Tensor, self.conv(x))


class Upsample(nn.Module):
    """Doubles height and width: each pixel four times, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]`` to ``[B, C, 2h, 2w]``."""
        return cast(Tensor, self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest")))


class Fourier(nn.Module):
    """Cosines and sines of a number at fixed random frequencies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, width // 2))

    def forward(self, number: Tensor) -> Tensor:
        """Maps float32 ``[B]`` to float32 ``[B, width]``."""
        angles = 2 * math.pi * number[:, None] * self.weight.float()
        return torch.cat([angles.cos(), angles.sin()], dim=-1)
