"""Layers that a UNet and a VAE over video frames share, under diffusers' parameter names.

Frames are the batch of spatial layers: ``[B * T, C, H, W]``. Every layer computes in the dtype of
its input and converts its weights to it, so a network stored in float16 can run in float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GROUPS = 32
"""Groups of every GroupNorm."""


class Conv2d(nn.Conv2d):
    """A convolution in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolves ``[N, C, H, W]``."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        result: Tensor = self._conv_forward(x, self.weight.to(x.dtype), bias)
        return result


class GroupNorm(nn.GroupNorm):
    """A GroupNorm of 32 groups in the dtype of its input."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(GROUPS, channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes ``[N, C, ...]``."""
        return F.group_norm(
            x, self.num_groups, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps
        )


class Linear(nn.Linear):
    """A linear layer in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., C]``."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class TemporalConv(nn.Module):
    """A convolution over three neighboring frames: diffusers' Conv3d of kernel (3, 1, 1).

    It runs as a 2D convolution of kernel (3, 1) over ``[B, C, T, H * W]``.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, channels, 3, 1, 1))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Convolves ``[B, C, T, P]``; frames before the first and after the last are zeros."""
        weight = self.weight.squeeze(-1).to(x.dtype)
        return F.conv2d(x, weight, self.bias.to(x.dtype), padding=(1, 0))


class SpatialResBlock(nn.Module):
    """diffusers' ``ResnetBlock2D``.

    Args:
        inputs: channels in.
        outputs: channels out.
        time: width of the embedded timestep; None without, or if its projection is given.
        eps: of the norms.
    """

    def __init__(self, inputs: int, outputs: int, time: int | None, eps: float) -> None:
        super().__init__()
        self.norm1 = GroupNorm(inputs, eps)
        self.conv1 = Conv2d(inputs, outputs, 3, padding=1)
        if time is not None:
            self.time_emb_proj = nn.Linear(time, outputs)
        self.norm2 = GroupNorm(outputs, eps)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """Maps ``[N, C, H, W]``.

        Args:
            x: input.
            time: the embedded timestep after SiLU, ``[1, E]``.
            shift: projection of the timestep ``[1, C']``, in place of ``time``, from a network that
                projects it for all blocks at once.
        """
        hidden = self.conv1(F.silu(self.norm1(x)))
        if time is not None:
            shift = self.time_emb_proj(time)
        if shift is not None:
            hidden = hidden + shift[:, :, None, None]
        result: Tensor = self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(hidden)))
        return result


class TemporalResBlock(nn.Module):
    """diffusers' ``TemporalResnetBlock`` without its residual connection."""

    def __init__(self, channels: int, time: int | None, eps: float) -> None:
        super().__init__()
        self.norm1 = GroupNorm(channels, eps)
        self.conv1 = TemporalConv(channels)
        if time is not None:
            self.time_emb_proj = nn.Linear(time, channels)
        self.norm2 = GroupNorm(channels, eps)
        self.conv2 = TemporalConv(channels)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Maps ``[B, C, T, P]``; the norms take statistics over all frames together."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        if time is not None:
            hidden = hidden + self.time_emb_proj(time)[:, :, None, None]
        result: Tensor = self.conv2(F.silu(self.norm2(hidden)))
        return result


class Mixer(nn.Module):
    """Learned weight of the temporal branch: diffusers' ``AlphaBlender`` for videos."""

    def __init__(self) -> None:
        super().__init__()
        self.mix_factor = nn.Parameter(torch.empty(1))


class ResBlock(nn.Module):
    """diffusers' ``SpatioTemporalResBlock``: a spatial block, then a temporal one.

    The blend ``a x + (1 - a) (x + f(x))`` of the spatial result x and the temporal block is
    ``x + (1 - a) f(x)``.
    """

    def __init__(
        self, inputs: int, outputs: int, time: int | None, eps: float, temporal_eps: float
    ) -> None:
        super().__init__()
        self.spatial_res_block = SpatialResBlock(inputs, outputs, time, eps)
        self.temporal_res_block = TemporalResBlock(outputs, time, temporal_eps)
        self.time_mixer = Mixer()

    def forward(
        self, x: Tensor, frames: int, temporal: Tensor, time: Tensor | None = None
    ) -> Tensor:
        """Maps ``[B * T, C, H, W]``.

        Args:
            x: all frames of B videos.
            frames: T.
            temporal: weight of the temporal branch, one element.
            time: the embedded timestep after SiLU, ``[1, E]``.
        """
        x = self.spatial_res_block(x, time)
        videos = x.unflatten(0, (-1, frames)).flatten(3).transpose(1, 2)
        change = self.temporal_res_block(videos, time).transpose(1, 2)
        result: Tensor = x + temporal * change.reshape(x.shape)
        return result


class Downsampler(nn.Module):
    """Halves height and width.

    Args:
        channels: of input and output.
        asymmetric: pads right and bottom alone, as the encoder of a VAE does.
    """

    def __init__(self, channels: int, asymmetric: bool = False) -> None:
        super().__init__()
        self.asymmetric = asymmetric
        self.conv = Conv2d(channels, channels, 3, stride=2, padding=0 if asymmetric else 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, C, H / 2, W / 2]``."""
        result: Tensor = self.conv(F.pad(x, (0, 1, 0, 1)) if self.asymmetric else x)
        return result


class Upsampler(nn.Module):
    """Doubles height and width by repetition, then convolves."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, size: Sequence[int] | None = None) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, C, 2 H, 2 W]``, or to a size that is 1 less.

        Nearest-neighbor interpolation to ``2 H - 1`` rows repeats the same rows as to ``2 H``, but
        for the last.

        Args:
            x: input.
            size: height and width of the output; by default twice the input's.
        """
        larger = F.interpolate(x, scale_factor=2.0, mode="nearest")
        if size is not None:
            larger = larger[..., : size[0], : size[1]]
        result: Tensor = self.conv(larger)
        return result
