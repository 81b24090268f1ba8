"""Transformer layers of the UNet.

Parameters have diffusers' names, but for linear layers of one input that are stacked: queries, keys
and values of self-attention, and keys and values of all cross-attentions, which the network holds.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.spatio_temporal import GroupNorm
from vidc.exporters.parts.svd_unet.layers import FeedForward


class _Attention(nn.Module):
    """Multi-head attention without a bias in queries, keys and values."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Maps queries ``[B, P, C]``, and keys and values ``[B, L, C]``."""
        heads = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (query, key, value)
        )
        result = F.scaled_dot_product_attention(*heads)
        projected: Tensor = self.to_out[0](result.transpose(1, 2).flatten(2))
        return projected


class PixelAttention(_Attention):
    """Self-attention over the pixels of a latent."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, heads)
        self.to_qkv = nn.Linear(channels, 3 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attends within each row of ``[B, P, C]``."""
        return self.attended(*self.to_qkv(x).chunk(3, -1))


class ActionAttention(_Attention):
    """Cross-attention of pixels to actions."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, heads)
        self.to_q = nn.Linear(channels, channels, bias=False)

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        """Maps pixels ``[B, P, C]``; ``actions`` are keys beside values, ``[1, L, 2 C]``."""
        key, value = actions.expand(len(x), -1, -1).chunk(2, -1)
        return self.attended(self.to_q(x), key, value)


class Block(nn.Module):
    """diffusers' ``BasicTransformerBlock``."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn1 = PixelAttention(channels, heads)
        self.norm2 = nn.LayerNorm(channels)
        self.attn2 = ActionAttention(channels, heads)
        self.norm3 = nn.LayerNorm(channels)
        self.ff = FeedForward(channels)

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        """Maps pixels ``[B, P, C]``; ``actions`` as in ``ActionAttention``."""
        x = x + self.attn1(self.norm1(x))
        x = x + self.attn2(self.norm2(x), actions)
        result: Tensor = x + self.ff(self.norm3(x))
        return result


class Transformer(nn.Module):
    """diffusers' ``Transformer2DModel`` with one layer.

    Its projections are linear layers; a checkpoint has them as convolutions of one pixel.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.channels = channels
        self.norm = GroupNorm(channels, 1e-6)
        self.proj_in = nn.Linear(channels, channels)
        self.transformer_blocks: Any = nn.ModuleList([Block(channels, heads)])
        self.proj_out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, actions: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]``; ``actions`` as in ``ActionAttention``."""
        tokens = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        tokens = self.proj_out(self.transformer_blocks[0](tokens, actions))
        result: Tensor = x + tokens.transpose(1, 2).reshape(x.shape)
        return result
