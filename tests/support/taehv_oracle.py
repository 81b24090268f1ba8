"""The published forward pass of TAEHV on whole clips, as functions of its weights.

Written from a description of madebyollin/taehv. Layers are named by their position in the published
networks, and every layer runs in the published order.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]


def decode(weights: Weights, latents: Tensor, patch: int = 1) -> Tensor:
    """Video frames ``[B, 4N - 3, 3, H, W]`` from 0 to 1 of latents ``[B, N, C, h, w]``."""
    x = _frames(
        3 * torch.tanh(latents / 3), lambda frame: _conv(weights, "decoder.1", frame).relu()
    )
    for start, growth in ((3, 1), (9, 2), (15, 2)):
        for position in range(start, start + 3):
            x = _remembering(weights, f"decoder.{position}", x)
        x = _frames(x, lambda frame: frame.repeat_interleave(2, -1).repeat_interleave(2, -2))
        x = _grow(weights, f"decoder.{start + 4}", x, growth)
        x = _frames(x, lambda frame, at=start + 5: _conv(weights, f"decoder.{at}", frame))
    x = _frames(x, lambda frame: _conv(weights, "decoder.22", frame.relu()))
    pixels = torch.stack([_to_pixels(frame, patch) for frame in x.unbind(1)], 1)
    return pixels.clamp(0, 1)[:, 3:]


def encode(weights: Weights, frames: Tensor, patch: int = 1) -> Tensor:
    """Latents ``[B, N, C, h, w]`` of video frames ``[B, T, 3, H, W]`` from 0 to 1."""
    missing = -frames.shape[1] % 4
    x = torch.cat([frames, *[frames[:, -1:]] * missing], 1)
    x = torch.stack([_from_pixels(frame, patch) for frame in x.unbind(1)], 1)
    x = _frames(x, lambda frame: _conv(weights, "encoder.0", frame).relu())
    for start, pooled in ((2, 2), (7, 2), (12, 1)):
        merged = [
            torch.cat(x[:, at : at + pooled].unbind(1), 1) for at in range(0, x.shape[1], pooled)
        ]
        pool = weights[f"encoder.{start}.conv.weight"]
        x = torch.stack([F.conv2d(frame, pool) for frame in merged], 1)
        halve = weights[f"encoder.{start + 1}.weight"]
        x = _frames(x, lambda frame, by=halve: F.conv2d(frame, by, stride=2, padding=1))
        for position in range(start + 2, start + 5):
            x = _remembering(weights, f"encoder.{position}", x)
    return _frames(x, lambda frame: _conv(weights, "encoder.17", frame))


def _frames(x: Tensor, layer) -> Tensor:
    return torch.stack([layer(frame) for frame in x.unbind(1)], 1)


def _conv(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.conv2d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), padding=1)


def _remembering(weights: Weights, name: str, x: Tensor) -> Tensor:
    """A residual block over each frame and the one before it, which is zero at the start."""
    before, results = torch.zeros_like(x[:, 0]), []
    for frame in x.unbind(1):
        y = _conv(weights, f"{name}.conv.0", torch.cat([frame, before], 1)).relu()
        y = _conv(weights, f"{name}.conv.2", y).relu()
        results.append((_conv(weights, f"{name}.conv.4", y) + frame).relu())
        before = frame
    return torch.stack(results, 1)


def _grow(weights: Weights, name: str, x: Tensor, frames: int) -> Tensor:
    """Several frames of each: groups of the channels of a convolution of one pixel."""
    weight, channels = weights[f"{name}.conv.weight"], x.shape[2]
    # A file may hold more frames than are used: the last ones are.
    weight = weight[-frames * channels :]
    grown = [F.conv2d(frame, weight).split(channels, 1) for frame in x.unbind(1)]
    return torch.stack([frame for group in grown for frame in group], 1)


def _to_pixels(x: Tensor, patch: int) -> Tensor:
    """Channels ``(color, row, column)`` of a square to its pixels."""
    batch, channels, height, width = x.shape
    squares = x.reshape(batch, channels // patch**2, patch, patch, height, width)
    return squares.permute(0, 1, 4, 2, 5, 3).reshape(batch, -1, patch * height, patch * width)


def _from_pixels(x: Tensor, patch: int) -> Tensor:
    batch, colors, height, width = x.shape
    squares = x.reshape(batch, colors, height // patch, patch, width // patch, patch)
    return squares.permute(0, 1, 3, 5, 2, 4).reshape(
        batch, colors * patch**2, height // patch, width // patch
    )
