"""The VAE of Stable Video Diffusion, under the parameter names of diffusers.

diffusers' ``AutoencoderKLTemporalDecoder`` is the reference: an image encoder, and a decoder whose
residual blocks see the frames of one chunk together.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.spatio_temporal import (
    Conv2d,
    Downsampler,
    GroupNorm,
    Linear,
    ResBlock,
    SpatialResBlock,
    TemporalConv,
    Upsampler,
)
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, SvdVaeConfig

_EPS, _TEMPORAL_EPS = 1e-6, 1e-5


class Attention(nn.Module):
    """Attention of one head over the pixels of a frame, with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.group_norm = GroupNorm(channels, _EPS)
        self.to_q = Linear(channels, channels)
        self.to_k = Linear(channels, channels)
        self.to_v = Linear(channels, channels)
        self.to_out = nn.ModuleList([Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]``."""
        tokens = self.group_norm(x).flatten(2).transpose(1, 2)[:, None]
        query, key, value = (layer(tokens) for layer in (self.to_q, self.to_k, self.to_v))
        attended = self.to_out[0](F.scaled_dot_product_attention(query, key, value)[:, 0])
        result: Tensor = x + attended.transpose(1, 2).reshape(x.shape)
        return result


class _Blocks(nn.Module):
    """Residual blocks of one resolution."""

    attentions: Any

    def __init__(self, resnets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.resnets: Any = nn.ModuleList(resnets)


def _spatial(inputs: int, outputs: int) -> SpatialResBlock:
    return SpatialResBlock(inputs, outputs, None, _EPS)


def _temporal(inputs: int, outputs: int) -> ResBlock:
    return ResBlock(inputs, outputs, None, _EPS, _TEMPORAL_EPS)


class Encoder(nn.Module):
    """Image encoder: moments of the latent's distribution."""

    def __init__(self, config: SvdVaeConfig) -> None:
        super().__init__()
        channels = config.channels
        self.conv_in = Conv2d(3, channels[0], 3, padding=1)
        self.down_blocks: Any = nn.ModuleList()
        before = channels[0]
        for level, width in enumerate(channels):
            inputs = [before, *[width] * (config.layers - 1)]
            block = _Blocks([_spatial(each, width) for each in inputs])
            if level < len(channels) - 1:
                block.downsamplers = nn.ModuleList([Downsampler(width, asymmetric=True)])
            self.down_blocks.append(block)
            before = width
        self.mid_block = _Blocks([_spatial(before, before) for _ in range(2)])
        self.mid_block.attentions = nn.ModuleList([Attention(before)])
        self.conv_norm_out = GroupNorm(before, _EPS)
        self.conv_out = Conv2d(before, 2 * LATENT_CHANNELS, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """Maps ``[1, 3, H, W]`` from -1 to 1 to ``[1, 8, h, w]``."""
        x = self.conv_in(image)
        for block in self.down_blocks:
            for layer in (*block.resnets, *getattr(block, "downsamplers", ())):
                x = layer(x)
        first, second = self.mid_block.resnets
        x = second(self.mid_block.attentions[0](first(x)))
        result: Tensor = self.conv_out(F.silu(self.conv_norm_out(x)))
        return result


class Decoder(nn.Module):
    """Decoder of latents, frame by frame or, with temporal residual blocks, of a chunk of frames.

    Args:
        config: its sizes.
        make: makes a residual block from its numbers of channels in and out.
        middle: number of residual blocks in the middle.
    """

    def __init__(
        self,
        config: SvdVaeConfig,
        make: Callable[[int, int], nn.Module] = _spatial,
        middle: int = 2,
    ) -> None:
        super().__init__()
        channels = config.channels
        before = channels[-1]
        self.conv_in = Conv2d(LATENT_CHANNELS, before, 3, padding=1)
        self.mid_block = _Blocks([make(before, before) for _ in range(middle)])
        self.mid_block.attentions = nn.ModuleList([Attention(before)])
        self.up_blocks: Any = nn.ModuleList()
        for level in reversed(range(len(channels))):
            width = channels[level]
            inputs = [before, *[width] * config.layers]
            block = _Blocks([make(each, width) for each in inputs])
            if level > 0:
                block.upsamplers = nn.ModuleList([Upsampler(width)])
            self.up_blocks.append(block)
            before = width
        self.conv_norm_out = GroupNorm(before, _EPS)
        self.conv_out = Conv2d(before, 3, 3, padding=1)

    def forward(self, latent: Tensor) -> Tensor:
        """Maps ``[T, 4, h, w]`` to ``[T, 3, H, W]``."""
        x = self.conv_in(latent)
        first, *rest = self.mid_block.resnets
        x = self._resnet(first, x)
        # diffusers pairs each attention with a resnet and drops what is left of the longer list.
        for attention, resnet in zip(self.mid_block.attentions, rest, strict=False):
            x = self._resnet(resnet, attention(x))
        for block in self.up_blocks:
            for resnet in block.resnets:
                x = self._resnet(resnet, x)
            for upsampler in getattr(block, "upsamplers", ()):
                x = upsampler(x)
        result: Tensor = self.conv_out(F.silu(self.conv_norm_out(x)))
        return result

    def _resnet(self, block: Any, x: Tensor) -> Tensor:
        result: Tensor = block(x)
        return result


class TemporalDecoder(Decoder):
    """Decoder of a chunk of frames."""

    def __init__(self, config: SvdVaeConfig) -> None:
        super().__init__(config, _temporal, config.layers)
        self.time_conv_out = TemporalConv(3)

    def forward(self, latent: Tensor) -> Tensor:
        """Maps a chunk ``[T, 4, h, w]`` to ``[T, 3, H, W]``."""
        x = super().forward(latent)
        video = x.flatten(2).transpose(0, 1)[None]
        result: Tensor = self.time_conv_out(video)[0].transpose(0, 1).reshape(x.shape)
        return result

    def _resnet(self, block: Any, x: Tensor) -> Tensor:
        # A VAE's mix_factor weighs the temporal branch; a UNet's weighs the spatial one.
        weight = torch.sigmoid(block.time_mixer.mix_factor).to(x.dtype)
        result: Tensor = block(x, x.shape[0], weight)
        return result


class SvdVae(nn.Module):
    """The network.

    Args:
        config: its sizes.
    """

    def __init__(self, config: SvdVaeConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.decoder = TemporalDecoder(config)
        self.quant_conv = Conv2d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
