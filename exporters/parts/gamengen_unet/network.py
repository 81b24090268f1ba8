"""GameNGen's UNet, under the parameter names of diffusers.

diffusers' ``UNet2DConditionModel`` is the reference, at the sizes of Stable Diffusion 1.4. It sees
past latents as channels, the noise level of those as a class, and actions in place of a text.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.gamengen_unet.config import GameNGenConfig
from vidc.exporters.parts.gamengen_unet.layers import Transformer
from vidc.exporters.parts.spatio_temporal import (
    Conv2d,
    Downsampler,
    GroupNorm,
    SpatialResBlock,
    Upsampler,
)
from vidc.exporters.parts.svd_unet.layers import Embedding, sinusoid

LATENT_CHANNELS = 4
_EPS = 1e-5
_Layer = tuple[SpatialResBlock, Transformer | None]
"""A residual block, and the transformer behind it if there is one."""


class _Block(nn.Module):
    """Residual blocks of one resolution, each with a transformer if the resolution has them."""

    attentions: Any

    def __init__(self, inputs: Sequence[int], outputs: int, heads: int, transformers: int) -> None:
        super().__init__()
        self.resnets: Any = nn.ModuleList(
            SpatialResBlock(each, outputs, None, _EPS) for each in inputs
        )
        if transformers:
            self.attentions = nn.ModuleList(
                Transformer(outputs, heads) for _ in range(transformers)
            )

    @property
    def layers(self) -> list[_Layer]:
        """Its layers, in their order; the last may be without a transformer."""
        found = [*getattr(self, "attentions", ())]
        missing = len(self.resnets) - len(found)
        return [*zip(self.resnets, [*found, *[None] * missing], strict=True)]


class _Pass:
    """One run of the network: hands every layer its own part of what is computed once a frame."""

    def __init__(self, shifts: Sequence[Tensor], actions: Sequence[Tensor]) -> None:
        self.shifts, self.actions = iter(shifts), iter(actions)

    def layer(self, layer: _Layer, x: Tensor) -> Tensor:
        """Runs a layer on ``[B, C, h, w]``."""
        resnet, transformer = layer
        x = resnet(x, shift=next(self.shifts))
        return x if transformer is None else transformer(x, next(self.actions))


class GameNGenUnet(nn.Module):
    """The network, with the embedding of actions.

    Two linear layers compute what all layers need of the timestep and of the actions: ``shifts``,
    the residual blocks' projections of the timestep, and ``action_kv``, the keys and values of all
    cross-attentions. A checkpoint has one linear layer for each, which ``names.pack`` stacks.

    Args:
        config: its sizes.
    """

    def __init__(self, config: GameNGenConfig) -> None:
        super().__init__()
        self.config = config
        channels, layers, heads = config.channels, config.layers, config.heads
        self.action_embedding = nn.Embedding(config.actions, config.action_dim)
        self.conv_in = Conv2d((config.past + 1) * LATENT_CHANNELS, channels[0], 3, padding=1)
        self.time_embedding = Embedding(channels[0], config.time_dim, config.time_dim)
        self.class_embedding = nn.Embedding(config.buckets, config.time_dim)
        self.down_blocks: Any = nn.ModuleList()
        skips, last = [channels[0]], len(channels) - 1
        for level, width in enumerate(channels):
            inputs = [channels[max(level - 1, 0)], *[width] * (layers - 1)]
            block = _Block(inputs, width, heads, layers if level < last else 0)
            skips += [width] * layers
            if level < last:
                block.downsamplers = nn.ModuleList([Downsampler(width)])
                skips.append(width)
            self.down_blocks.append(block)
        width = channels[-1]
        self.mid_block = _Block([width, width], width, heads, 1)
        self.up_blocks: Any = nn.ModuleList()
        for level in reversed(range(len(channels))):
            outputs = channels[level]
            inputs = [width + skips.pop(), *(outputs + skips.pop() for _ in range(layers))]
            block = _Block(inputs, outputs, heads, layers + 1 if level < last else 0)
            if level > 0:
                block.upsamplers = nn.ModuleList([Upsampler(outputs)])
            self.up_blocks.append(block)
            width = outputs
        self.conv_norm_out = GroupNorm(channels[0], _EPS)
        self.conv_out = Conv2d(channels[0], LATENT_CHANNELS, 3, padding=1)
        self.shift_widths = [resnet.conv1.out_channels for resnet, _ in self.layers]
        """Channels of each residual block."""
        self.action_widths = [2 * each.channels for _, each in self.layers if each is not None]
        """Channels of the keys and values of each transformer."""
        self.shifts = nn.Linear(config.time_dim, sum(self.shift_widths))
        self.action_kv = nn.Linear(config.action_dim, sum(self.action_widths), bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.conv_in.weight.dtype

    @property
    def layers(self) -> list[_Layer]:
        """Every residual block and its transformer, in the order in which they run."""
        blocks = (*self.down_blocks, self.mid_block, *self.up_blocks)
        return [layer for block in blocks for layer in block.layers]

    def embedded_actions(self, actions: Tensor) -> Tensor:
        """Returns keys and values of all transformers, ``[1, past, widths]`` in the weights' dtype.

        Args:
            actions: one-hot rows, the newest last, float32 ``[1, past, actions]``.
        """
        tokens = actions.to(self.dtype) @ self.action_embedding.weight
        result: Tensor = self.action_kv(tokens)
        return result

    def embedded_times(self, timesteps: Tensor, bucket: Tensor | None) -> Tensor:
        """Returns vectors that residual blocks add at each timestep, ``[steps, widths]``.

        They are in the weights' dtype.

        Args:
            timesteps: from 0 to 1000, float32 ``[steps]``.
            bucket: class of the past latents' noise level, int64 ``[1]``; None for class 0.
        """
        table = self.class_embedding.weight
        noise = table[:1] if bucket is None else F.embedding(bucket, table)
        time = self.time_embedding(sinusoid(timesteps, self.config.channels[0])) + noise
        result: Tensor = self.shifts(F.silu(time))
        return result

    def forward(self, sample: Tensor, shifts: Tensor, actions: Tensor) -> Tensor:
        """Returns the network's prediction v, ``[B, 4, h, w]`` in the weights' dtype.

        Args:
            sample: past latents, the oldest first, and the noisy one: ``[B, 4 (past + 1), h, w]``
                in the weights' dtype. Sizes that are not multiples of 8 are rounded up on the way
                down.
            shifts: row of ``embedded_times`` for one timestep, ``[1, widths]``.
            actions: result of ``embedded_actions``.
        """
        run = _Pass(shifts.split(self.shift_widths, 1), actions.split(self.action_widths, 2))
        x = self.conv_in(sample)
        skips = [x]
        for block in self.down_blocks:
            for layer in block.layers:
                x = run.layer(layer, x)
                skips.append(x)
            for downsampler in getattr(block, "downsamplers", ()):
                x = downsampler(x)
                skips.append(x)
        for layer in self.mid_block.layers:
            x = run.layer(layer, x)
        for block in self.up_blocks:
            for layer in block.layers:
                x = run.layer(layer, torch.cat([x, skips.pop()], 1))
            for upsampler in getattr(block, "upsamplers", ()):
                x = upsampler(x, skips[-1].shape[-2:])
        result: Tensor = self.conv_out(F.silu(self.conv_norm_out(x)))
        return result
