"""Transformer layers of the UNet, under diffusers' parameter names.

Cross-attention attends to a single token, the image's. A softmax over one key is 1, so its result
is ``to_out(to_v(token))``: one vector for every pixel, computed once an image.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.spatio_temporal import GroupNorm, Mixer

_MAX_PERIOD = 10000


def sinusoid(x: Tensor, width: int) -> Tensor:
    """Embeds numbers ``[N]`` as float32 ``[N, width]``: cosines, then sines (flip_sin_to_cos)."""
    half = width // 2
    powers = torch.arange(half, dtype=torch.float32, device=x.device) / half
    angles = x.float()[:, None] * torch.exp(-math.log(_MAX_PERIOD) * powers)[None]
    return torch.cat([angles.cos(), angles.sin()], -1)


class Embedding(nn.Module):
    """diffusers' ``TimestepEmbedding``: linear, SiLU, linear."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, hidden)
        self.linear_2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps float32 ``[N, inputs]`` to ``[N, outputs]`` in the weights' dtype."""
        result: Tensor = self.linear_2(F.silu(self.linear_1(x.to(self.linear_1.weight.dtype))))
        return result


class _Gated(nn.Module):
    """GEGLU: half of a linear layer's output, times GELU of the other half."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(channels, 2 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.proj(x).chunk(2, -1)
        result: Tensor = values * F.gelu(gate)
        return result


class FeedForward(nn.Module):
    """GEGLU with four times the channels, and a linear layer back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # diffusers has a dropout between the two.
        self.net = nn.ModuleDict(
            {"0": _Gated(channels, 4 * channels), "2": nn.Linear(4 * channels, channels)}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., C]``."""
        result: Tensor = self.net["2"](self.net["0"](x))
        return result


class SelfAttention(nn.Module):
    """Multi-head attention without a bias in queries, keys and values."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(channels, channels, bias=False)
        self.to_v = nn.Linear(channels, channels, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Attends within each row of ``[N, L, C]``."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.to_out[0](attended.transpose(1, 2).flatten(2))
        return result


class _Unused(nn.Module):
    """Weight of a linear layer that has no effect and never runs; checkpoints have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))


class CrossAttention(nn.Module):
    """Attention to one token, on which queries and keys have no effect."""

    def __init__(self, channels: int, image_dim: int) -> None:
        super().__init__()
        self.to_q = _Unused(channels, channels)
        self.to_k = _Unused(image_dim, channels)
        self.to_v = nn.Linear(image_dim, channels, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, token: Tensor) -> Tensor:
        """Maps tokens ``[N, image_dim]`` to what every pixel gets, ``[N, C]``."""
        result: Tensor = self.to_out[0](self.to_v(token))
        return result


class SpatialBlock(nn.Module):
    """diffusers' ``BasicTransformerBlock``."""

    def __init__(self, channels: int, heads: int, image_dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn1 = SelfAttention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        """Without effect: it would normalize the queries of a softmax over one key."""
        self.attn2 = CrossAttention(channels, image_dim)
        self.norm3 = nn.LayerNorm(channels)
        self.ff = FeedForward(channels)

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        """Maps frames' tokens ``[B * T, P, C]``; ``image`` is ``[B, C]``."""
        x = x + self.attn1(self.norm1(x))
        x = (x.unflatten(0, (image.shape[0], -1)) + image[:, None, None]).flatten(0, 1)
        result: Tensor = x + self.ff(self.norm3(x))
        return result


class TemporalBlock(nn.Module):
    """diffusers' ``TemporalBasicTransformerBlock``: attends over the frames of each pixel."""

    def __init__(self, channels: int, heads: int, image_dim: int) -> None:
        super().__init__()
        self.norm_in = nn.LayerNorm(channels)
        self.ff_in = FeedForward(channels)
        self.norm1 = nn.LayerNorm(channels)
        self.attn1 = SelfAttention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        """Without effect, as in ``SpatialBlock``."""
        self.attn2 = CrossAttention(channels, image_dim)
        self.norm3 = nn.LayerNorm(channels)
        self.ff = FeedForward(channels)

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        """Maps tokens ``[B, P, T, C]``; ``image`` is ``[B, C]``."""
        x = x + self.ff_in(self.norm_in(x))
        normed = self.norm1(x)
        x = x + self.attn1(normed.flatten(0, 1)).view(normed.shape)
        x = x + image[:, None, None]
        result: Tensor = x + self.ff(self.norm3(x))
        return result


class Transformer(nn.Module):
    """diffusers' ``TransformerSpatioTemporalModel`` with one layer."""

    def __init__(self, channels: int, heads: int, image_dim: int) -> None:
        super().__init__()
        self.channels = channels
        self.norm = GroupNorm(channels, 1e-6)
        self.proj_in = nn.Linear(channels, channels)
        self.transformer_blocks: Any = nn.ModuleList([SpatialBlock(channels, heads, image_dim)])
        self.temporal_transformer_blocks: Any = nn.ModuleList(
            [TemporalBlock(channels, heads, image_dim)]
        )
        self.time_pos_embed = Embedding(channels, 4 * channels, channels)
        self.time_mixer = Mixer()
        self.proj_out = nn.Linear(channels, channels)

    def image_vectors(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what both cross-attentions add, each ``[N, C]``, for tokens ``[N, E]``."""
        spatial, temporal = self.transformer_blocks[0], self.temporal_transformer_blocks[0]
        return spatial.attn2(token), temporal.attn2(token)

    def frame_vectors(self, frames: int) -> Tensor:
        """Returns the embedding of each frame's place in the clip, ``[T, C]``."""
        device = self.proj_in.weight.device
        places = torch.arange(frames, dtype=torch.float32, device=device)
        result: Tensor = self.time_pos_embed(sinusoid(places, self.channels))
        return result

    def forward(
        self, x: Tensor, spatial: Tensor, temporal: Tensor, frames: Tensor, weight: Tensor
    ) -> Tensor:
        """Maps ``[B * T, C, H, W]``.

        Args:
            x: all frames of B videos.
            spatial: first result of ``image_vectors``, ``[B, C]``.
            temporal: second result of ``image_vectors``, ``[B, C]``.
            frames: result of ``frame_vectors``, ``[T, C]``.
            weight: weight of the temporal branch, one element.
        """
        tokens = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        tokens = self.transformer_blocks[0](tokens, spatial)
        videos = tokens.unflatten(0, (-1, frames.shape[0]))
        pixels = (videos + frames[None, :, None]).transpose(1, 2)
        changed = self.temporal_transformer_blocks[0](pixels, temporal).transpose(1, 2)
        videos = torch.lerp(videos, changed, weight)
        projected: Tensor = self.proj_out(videos.flatten(0, 1))
        return x + projected.transpose(1, 2).reshape(x.shape)
