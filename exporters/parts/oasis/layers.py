"""Layers of Oasis's transformer and of its VAE, under the names of their checkpoints.

The model is that of etched-ai/open-oasis. As in ``causal_wan``, norms, modulation, rotation and the
sum of the branches are computed in float32, everything else in the weights' dtype.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Patches(nn.Module):
    """Embeds square patches: a convolution with stride equal to its kernel, as a matmul."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.weight = nn.Parameter(torch.empty(dim, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[B, C, h, w]`` to tokens ``[B, h/p * w/p, dim]`` in float32, row by row."""
        batch, channels, height, width = x.shape
        size = self.patch
        split = x.reshape(batch, channels, height // size, size, width // size, size)
        patches = split.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(patches.to(self.weight.dtype), self.weight.flatten(1), self.bias).float()


class Mlp(nn.Module):
    """Linear, GELU, Linear.

    Args:
        dim: channels of input and output.
        hidden: channels between the two linear layers.
        approximate: approximation of GELU: ``tanh`` or ``none``.
    """

    def __init__(self, dim: int, hidden: int, approximate: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., dim]`` to the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))
        return out


def axial_rope(
    grid: tuple[int, int], pairs: int, max_freq: float, head_dim: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of a grid's rotary embedding, each float32 ``[rows cols, D / 2]``.

    A head's first ``pairs`` channel pairs turn with the row, the next ``pairs`` with the column and
    the rest not at all. Rows and columns lie at even steps from -1 to 1; pair ``i`` of ``n``
    turns by ``position * pi * (1 + (max_freq / 2 - 1) * i / (n - 1))``.

    Args:
        grid: rows and columns.
        pairs: channel pairs that turn with one axis.
        max_freq: twice the highest frequency, in multiples of pi.
        head_dim: ``D``, channels of a head.
        device: device of the result.
    """
    frequencies = torch.linspace(1.0, max_freq / 2, pairs, device=device) * math.pi
    rows, columns = (torch.linspace(-1, 1, size, device=device)[:, None] for size in grid)
    down = (rows * frequencies)[:, None].expand(*grid, pairs)
    across = (columns * frequencies)[None].expand(*grid, pairs)
    angles = F.pad(torch.cat([down, across], -1), (0, head_dim // 2 - 2 * pairs)).flatten(0, 1)
    return angles.cos(), angles.sin()


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Computes attention of all tokens to one another, ``[B, T, H D]``.

    Args:
        queries: ``[B, T, H, D]``.
        keys: ``[B, T, H, D]``.
        values: ``[B, T, H, D]``.
    """
    attended: Tensor = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    )
    return attended.transpose(1, 2).flatten(2)


def split_heads(projected: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits ``[B, T, 3 H D]`` into queries, keys and values, each ``[B, T, H, D]``."""
    queries, keys, values = projected.unflatten(-1, (3, heads, -1)).unbind(2)
    return queries, keys, values
