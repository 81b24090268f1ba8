"""The public code's streaming VAE decoder: one latent frame after the other.

Unlike diffusers' decoder it normalizes in the weights' dtype instead of float32, which makes it
faster in half precision; in float32 the two are the same.
"""

from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.config import VaeConfig

Memory = list[Tensor | None]
"""The last two frames that each causal convolution was given; nothing before a clip starts."""
PAST = 2


class _RmsNorm(nn.Module):
    def __init__(self, dim: int, axes: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim, *[1] * axes))
        self.scale = dim**0.5

    def forward(self, x: Tensor) -> Tensor:
        # The public code adds a bias that this norm does not have: a pass over memory.
        out: Tensor = F.normalize(x, dim=1) * self.scale * self.gamma + 0.0
        return out


class _CausalConv(nn.Conv3d):
    """A convolution that looks at the past alone, and keeps it if it is given a slot."""

    def __init__(
        self, dim_in: int, dim: int, kernel: tuple[int, int, int], slot: int | None = None
    ) -> None:
        super().__init__(dim_in, dim, kernel)
        side = kernel[1] // 2
        self.pads = [side] * 4
        self.past = kernel[0] - 1
        self.slot = slot

    def forward(self, x: Tensor, memory: Memory | None = None) -> Tensor:
        """``[B, C, T, h, w]`` to the same with other channels."""
        missing = self.past
        if memory is not None and self.slot is not None:
            kept, past = x[:, :, -PAST:].clone(), memory[self.slot]
            if past is not None:
                if kept.shape[2] < PAST:
                    kept = torch.cat([past[:, :, -1:], kept], 2)
                x = torch.cat([past, x], 2)
                missing -= past.shape[2]
            memory[self.slot] = kept
        return super().forward(F.pad(x, (*self.pads, missing, 0)))


class _Residual(nn.Module):
    def __init__(self, dim_in: int, dim: int, slots: "count[int]") -> None:
        super().__init__()
        self.norm1 = _RmsNorm(dim_in, 3)
        self.conv1 = _CausalConv(dim_in, dim, (3, 3, 3), next(slots))
        self.norm2 = _RmsNorm(dim, 3)
        self.conv2 = _CausalConv(dim, dim, (3, 3, 3), next(slots))
        self.conv_shortcut = _CausalConv(dim_in, dim, (1, 1, 1)) if dim_in != dim else nn.Identity()

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        shortcut = self.conv_shortcut(x)
        x = self.conv1(F.silu(self.norm1(x)), memory)
        out: Tensor = self.conv2(F.silu(self.norm2(x)), memory) + shortcut
        return out


class _Attention(nn.Module):
    """One head over the pixels of each frame."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = _RmsNorm(dim, 2)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, frames, height, width = x.shape
        images = x.transpose(1, 2).reshape(-1, channels, height, width)
        joint = self.to_qkv(self.norm(images)).flatten(2)[:, None]
        queries, keys, values = joint.transpose(2, 3).contiguous().chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(queries, keys, values)
        attended = attended.squeeze(1).transpose(1, 2).reshape(images.shape)
        images = self.proj(attended).unflatten(0, (batch, frames))
        out: Tensor = images.transpose(1, 2) + x
        return out


class _Double(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        doubled = F.interpolate(images.float(), scale_factor=(2.0, 2.0), mode="nearest")
        return doubled.type_as(images)


class _Upsampler(nn.Module):
    """Twice the height and width, and twice the frames where ``slot`` is given."""

    def __init__(self, dim: int, slot: int | None) -> None:
        super().__init__()
        self.resample = nn.Sequential(_Double(), nn.Conv2d(dim, dim // 2, 3, padding=1))
        self.time_conv = None if slot is None else _CausalConv(dim, 2 * dim, (3, 1, 1), slot)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        if self.time_conv is not None:
            x = self._double_frames(x, self.time_conv, memory)
        frames = x.shape[2]
        images = self.resample(x.transpose(1, 2).flatten(0, 1))
        out: Tensor = images.unflatten(0, (-1, frames)).transpose(1, 2)
        return out

    @staticmethod
    def _double_frames(x: Tensor, convolution: _CausalConv, memory: Memory) -> Tensor:
        slot = convolution.slot
        assert slot is not None
        if memory[slot] is None:
            # A clip's first frame stays one frame, and to those after it there was none.
            memory[slot] = torch.zeros_like(x).repeat(1, 1, PAST, 1, 1)
            return x
        even, odd = convolution(x, memory).unflatten(1, (2, -1)).unbind(1)
        return torch.stack((even, odd), 3).flatten(2, 3)


class _UpBlock(nn.Module):
    def __init__(
        self, dims: tuple[int, int], residuals: int, up: bool, in_time: bool, slots: "count[int]"
    ) -> None:
        super().__init__()
        dim_in, dim = dims
        self.resnets = nn.ModuleList(
            _Residual(dim if i else dim_in, dim, slots) for i in range(residuals)
        )
        self.upsamplers = nn.ModuleList(
            [_Upsampler(dim, next(slots) if in_time else None)] if up else []
        )

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        for module in (*self.resnets, *self.upsamplers):
            x = module(x, memory)
        return x


class _MidBlock(nn.Module):
    def __init__(self, dim: int, slots: "count[int]") -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_Residual(dim, dim, slots) for _ in range(2))
        self.attentions = nn.ModuleList([_Attention(dim)])

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        out: Tensor = self.resnets[1](self.attentions[0](self.resnets[0](x, memory)), memory)
        return out


class _Decoder(nn.Module):
    """One latent frame to its video frames: what ``torch.compile`` is given."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        slots = count()
        widths = [config.base_dim * factor for factor in reversed(config.dim_mult)]
        doubles = [*reversed(config.temporal_downsample), False]
        self.conv_in = _CausalConv(config.z_dim, widths[0], (3, 3, 3), next(slots))
        self.mid_block = _MidBlock(widths[0], slots)
        # An upsampler halves the width of what comes after it.
        inputs = [widths[0], *(width // 2 for width in widths[:-1])]
        self.up_blocks = nn.ModuleList(
            _UpBlock(dims, config.res_blocks + 1, i + 1 < len(widths), doubles[i], slots)
            for i, dims in enumerate(zip(inputs, widths, strict=True))
        )
        self.norm_out = _RmsNorm(widths[-1], 3)
        self.conv_out = _CausalConv(widths[-1], 3, (3, 3, 3), next(slots))
        self.slots = next(slots)

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """``[1, C, 1, h, w]`` to ``[1, 3, T, 8 h, 8 w]``: 1 frame at a clip's start, then 4."""
        x = self.mid_block(self.conv_in(x, memory), memory)
        for block in self.up_blocks:
            x = block(x, memory)
        out: Tensor = self.conv_out(F.silu(self.norm_out(x)), memory)
        return out


class VaeDecoder(nn.Module):
    """The decoder with its statistics; parameters are named as in ``AutoencoderKLWan``."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.post_quant_conv = _CausalConv(config.z_dim, config.z_dim, (1, 1, 1))
        self.decoder = _Decoder(config)

    def memory(self) -> Memory:
        """What a clip starts with."""
        return [None] * self.decoder.slots

    def forward(self, latent: Tensor, memory: Memory) -> Tensor:
        """The next frames of one clip.

        Args:
            latent: ``[F, C, h, w]``, normalized as the transformer uses it.
            memory: of the clip, which moves on.

        Returns:
            float32 ``[3, 4 F, H, W]`` in [-1, 1], three frames fewer at the start of the clip.
        """
        weight = self.post_quant_conv.weight
        latent = latent.to(weight.dtype).transpose(0, 1)[None]
        mean = torch.tensor(self.config.latents_mean).to(weight).view(1, -1, 1, 1, 1)
        inverse = 1.0 / torch.tensor(self.config.latents_std).to(weight).view(1, -1, 1, 1, 1)
        x = self.post_quant_conv(latent / inverse + mean)
        frames: Tensor = self.decoder(x[:, :, :1], memory)
        for index in range(1, x.shape[2]):
            frames = torch.cat([frames, self.decoder(x[:, :, index : index + 1], memory)], 2)
        return frames.float().clamp_(-1, 1).squeeze(0)
