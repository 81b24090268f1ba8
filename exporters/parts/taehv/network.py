"""TAEHV: a tiny autoencoder of videos (madebyollin/taehv, MIT), under its own parameter names.

Every layer works on single frames, except three: a ``MemoryBlock`` also sees the frame before, a
``FrameUpsample`` makes several frames of one, and a ``FramePool`` makes one of several. So blocks
of a stream share one thing alone: the last input frame of each ``MemoryBlock``.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.taehv.config import STAGES, TaehvConfig

MEMORY_BLOCKS = 3
"""Memory blocks of each stage."""
_GROWTH = (1, 2, 2)
"""Frames that each of the decoder's stages makes of one."""
_POOLING = (2, 2, 1)
"""Frames of which each of the encoder's stages makes one."""


def _conv(inputs: int, outputs: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, stride=stride, bias=bias)


class MemoryBlock(nn.Module):
    """Residual block of three convolutions over a frame and the one before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(2 * channels, channels), nn.ReLU(),
            _conv(channels, channels), nn.ReLU(),
            _conv(channels, channels),
        )  # fmt: skip

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """Maps frames ``[B, T, C, h, w]``.

        Args:
            x: the frames.
            before: the input frame before them, ``[B, C, h, w]``.
        """
        past = torch.cat([before[:, None], x[:, :-1]], 1)
        pairs = torch.cat([x, past], 2).flatten(0, 1)
        frames: Tensor = F.relu(self.conv(pairs) + x.flatten(0, 1))
        return frames.reshape(x.shape)


class FramePool(nn.Module):
    """1 x 1 convolution over several frames, which become one."""

    def __init__(self, channels: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        self.conv = nn.Conv2d(frames * channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, frames T, C, h, w]`` to ``[B, T, C, h, w]``."""
        batch, count = x.shape[:2]
        groups = x.unflatten(1, (-1, self.frames)).flatten(0, 1)
        # Concatenates: in channels-last format, no view joins frames with channels.
        merged: Tensor = self.conv(torch.cat(groups.unbind(1), 1))
        return merged.reshape(batch, count // self.frames, *merged.shape[1:])


class FrameUpsample(nn.Module):
    """1 x 1 convolution that makes several frames of one, then doubles height and width.

    The published network doubles them first. The order does not change the result, and the
    convolution of the smaller frames takes a quarter of the operations.
    """

    def __init__(self, channels: int, frames: int) -> None:
        super().__init__()
        self.frames = frames
        self.conv = nn.Conv2d(channels, frames * channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, T, C, h, w]`` to ``[B, frames T, C, 2h, 2w]``."""
        batch, count = x.shape[:2]
        grown = self.conv(x.flatten(0, 1)).unsqueeze(1)
        # Concatenates: in channels-last format, no view splits channels into frames.
        split = torch.cat(grown.chunk(self.frames, 2), 1).flatten(0, 1)
        larger = F.interpolate(split, scale_factor=2.0, mode="nearest")
        return larger.reshape(batch, self.frames * count, *larger.shape[1:])


def _decoder(config: TaehvConfig) -> nn.Sequential:
    """Returns the decoder's layers at the positions that their names have."""
    widths = config.widths
    layers: list[nn.Module] = [nn.Identity(), _conv(config.latent_channels, widths[0]), nn.ReLU()]
    for stage, frames in enumerate(_GROWTH):
        layers += [MemoryBlock(widths[stage]) for _ in range(MEMORY_BLOCKS)]
        # The identity has the position of the published network's upsampling.
        layers += [nn.Identity(), FrameUpsample(widths[stage], frames)]
        layers += [_conv(widths[stage], widths[stage + 1], bias=False)]
    layers += [nn.ReLU(), _conv(widths[STAGES], config.pixel_channels)]
    return nn.Sequential(*layers)


def _encoder(config: TaehvConfig) -> nn.Sequential:
    width = config.encoder_width
    layers: list[nn.Module] = [_conv(config.pixel_channels, width), nn.ReLU()]
    for frames in _POOLING:
        layers += [FramePool(width, frames), _conv(width, width, stride=2, bias=False)]
        layers += [MemoryBlock(width) for _ in range(MEMORY_BLOCKS)]
    layers += [_conv(width, config.latent_channels)]
    return nn.Sequential(*layers)


class Taehv(nn.Module):
    """The network.

    Args:
        config: its sizes.
    """

    def __init__(self, config: TaehvConfig) -> None:
        super().__init__()
        self.encoder = _encoder(config)
        self.decoder = _decoder(config)


def run(layers: Iterable[nn.Module], x: Tensor, memories: Sequence[Tensor | None]) -> list[Tensor]:
    """Runs an encoder or decoder over frames ``[B, T, C, h, w]``.

    Args:
        layers: of the network.
        x: the frames.
        memories: the input frame of each ``MemoryBlock`` before these, ``[B, C, h, w]``; None at
            the start of a clip, where it is zero.

    Returns:
        The resulting frames, then the memories after them.
    """
    waiting, after = iter(memories), []
    for layer in layers:
        if isinstance(layer, MemoryBlock):
            before = next(waiting)
            after.append(x[:, -1])
            x = layer(x, torch.zeros_like(x[:, 0]) if before is None else before)
        elif isinstance(layer, FramePool | FrameUpsample):
            x = layer(x)
        else:
            x = layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return [x, *after]
