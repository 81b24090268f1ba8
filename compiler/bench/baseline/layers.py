"""Layers of the public code's transformer, in the dtype of their weights but for what is noted."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.compiler.bench.baseline.cache import LayerCache, TextCache, Update
from vidc.exporters.config import TransformerConfig

ROTARY_FRAMES = 1024
"""Latent frames that the public code's table of rotations holds."""
THETA = 10000.0


class RmsNorm(nn.Module):
    """RMS normalization in float32; the weight is applied after the result is rounded."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same shape and dtype."""
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return exact.type_as(x) * self.weight


def rotary_table(head_dim: int) -> Tensor:
    """Rotations of each channel pair at each position, complex128 ``[1024, D / 2]``."""
    position = torch.arange(ROTARY_FRAMES, dtype=torch.float64)
    angles = [
        torch.outer(position, THETA ** -(torch.arange(pairs, dtype=torch.float64) / pairs))
        for pairs in _pairs(head_dim)
    ]
    return torch.cat([torch.polar(torch.ones_like(axis), axis) for axis in angles], 1)


def _pairs(head_dim: int) -> list[int]:
    """Channel pairs that turn with time, rows and columns."""
    side = head_dim // 6
    return [head_dim // 2 - 2 * side, side, side]


def rotate(x: Tensor, grid: Tensor, table: Tensor, first_frame: int) -> Tensor:
    """Rotary embedding in complex128, sample by sample.

    Args:
        x: ``[B, T, H, D]``.
        grid: frames, rows and columns of each sample's tokens, int64 ``[B, 3]`` on the CPU.
        table: what ``rotary_table`` gives, on x's device.
        first_frame: absolute index of the first latent frame.
    """
    time, down, across = table.split(_pairs(x.shape[3]), 1)
    rotated = []
    for sample, (frames, rows, cols) in zip(x, grid.tolist(), strict=True):
        tokens = frames * rows * cols
        factors = torch.cat(
            [
                time[first_frame : first_frame + frames, None, None].expand(-1, rows, cols, -1),
                down[None, :rows, None].expand(frames, -1, cols, -1),
                across[None, None, :cols].expand(frames, rows, -1, -1),
            ],
            -1,
        ).reshape(tokens, 1, -1)
        pairs = sample[:tokens].to(torch.float64).reshape(tokens, x.shape[2], -1, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * factors).flatten(2)
        # Padding behind the tokens would stay as it is; there is none, but the copy is made.
        rotated.append(torch.cat([turned, sample[tokens:]]))
    return torch.stack(rotated).type_as(x)


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention without a mask; all ``[B, T, H, D]``."""
    attended = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    )
    return attended.transpose(1, 2).contiguous()


class _Attention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        dim = config.dim
        self.heads = config.heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])
        self.norm_q = RmsNorm(dim, config.eps)
        self.norm_k = RmsNorm(dim, config.eps)

    def _queries(self, x: Tensor) -> Tensor:
        return self._heads(self.norm_q(self.to_q(x)))

    def _keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.norm_k(self.to_k(x))), self._heads(self.to_v(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1)


class SelfAttention(_Attention):
    """Attention of a block to the window."""

    def forward(
        self,
        x: Tensor,
        grid: Tensor,
        table: Tensor,
        cache: LayerCache,
        first_frame: int,
        keep_sink: bool,
    ) -> tuple[Tensor, Update]:
        """``[B, T, dim]`` to the same, and what the pass leaves in the cache."""
        queries = self._queries(x)
        keys, values = self._keys_values(x)
        end = first_frame * int(grid[0, 1:].prod().item()) + x.shape[1]
        queries = rotate(queries, grid, table, first_frame)
        keys = rotate(keys, grid, table, first_frame)
        slots = cache.place(x.shape[1], end, keep_sink)
        keys, values = keys[:, slots.skipped :], values[:, slots.skipped :]
        attended = attend(queries, *cache.extended(slots, keys, values))
        return self.to_out[0](attended.flatten(2)), Update(end, slots, keys, values)


class CrossAttention(_Attention):
    """Attention of a block to the prompt."""

    def forward(self, x: Tensor, text: Tensor, cache: TextCache) -> Tensor:
        """``[B, T, dim]`` and the prompt ``[B, L, dim]`` to ``[B, T, dim]``."""
        queries = self._queries(x)
        if cache.computed is None:
            cache.computed = self._keys_values(text)
        attended: Tensor = self.to_out[0](attend(queries, *cache.computed).flatten(2))
        return attended


class _GeluProjection(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class _FeedForward(nn.Module):
    """Linear, tanh-GELU, Linear; the middle entry of ``net`` keeps diffusers' numbering."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.net = nn.Sequential(_GeluProjection(dim, inner), nn.Identity(), nn.Linear(inner, dim))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Layer(nn.Module):
    """Self-attention, cross-attention and feed-forward: what ``torch.compile`` is given."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.attn1 = SelfAttention(config)
        self.norm2 = nn.LayerNorm(config.dim, config.eps)
        self.attn2 = CrossAttention(config)
        self.norm3 = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.ffn = _FeedForward(config.dim, config.ffn_dim)
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 6, config.dim))

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        grid: Tensor,
        table: Tensor,
        text: Tensor,
        cache: LayerCache,
        text_cache: TextCache,
        first_frame: int,
        keep_sink: bool,
    ) -> tuple[Tensor, Update]:
        """One layer over some latent frames.

        Args:
            x: ``[B, T, dim]``.
            time: shift, scale and gate, twice, for each latent frame, ``[B, F, 6, dim]``.
            grid: as in ``rotate``.
            table: as in ``rotate``.
            text: ``[B, L, dim]``.
            cache: read, not written.
            text_cache: filled if it is empty.
            first_frame: absolute index of the first latent frame.
            keep_sink: leave the sink's keys and values as they are.

        Returns:
            ``[B, T, dim]``, and what is to be written to the cache.
        """
        frames = (time.shape[1], x.shape[1] // time.shape[1])
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (
            self.scale_shift_table.unsqueeze(1) + time
        ).chunk(6, dim=2)
        normed = (self.norm1(x).unflatten(1, frames) * (1 + scale) + shift).flatten(1, 2)
        attended, update = self.attn1(normed, grid, table, cache, first_frame, keep_sink)
        x = x + (attended.unflatten(1, frames) * gate).flatten(1, 2)
        x = x + self.attn2(self.norm2(x), text, text_cache)
        normed = (self.norm3(x).unflatten(1, frames) * (1 + ffn_scale) + ffn_shift).flatten(1, 2)
        return x + (self.ffn(normed).unflatten(1, frames) * ffn_gate).flatten(1, 2), update
