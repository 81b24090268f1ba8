"""Oasis's transformer: attention within a frame, and over time to rings of past frames.

Temporal attention is causal and everything else stays inside a frame. So keys and values of past
frames never change: they are computed once, into one ring for each token of a frame.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from vidc.exporters.kv_ring import KvRing
from vidc.exporters.parts.causal_wan.layers import gated_residual, modulated_norm, rotate
from vidc.exporters.parts.oasis.config import EPS, MAX_FREQ, OasisConfig
from vidc.exporters.parts.oasis.layers import Mlp, Patches, attend, axial_rope, split_heads

Rope = tuple[Tensor, Tensor]
"""Cosines and sines of a rotary embedding, each float32 ``[T, D / 2]``."""


class _Attention(nn.Module):
    """Projections of spatial or temporal attention."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.to_qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.to_out = nn.Linear(config.dim, config.dim)


class SpatialAttention(_Attention):
    """Attention of a frame's tokens to one another."""

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        """Maps tokens ``[1, T, dim]`` to as many; ``rope`` is that of their places in the frame."""
        queries, keys, values = split_heads(self.to_qkv(x), self.heads)
        attended = attend(rotate(queries, *rope), rotate(keys, *rope), values)
        return cast(Tensor, self.to_out(attended))


class TemporalAttention(_Attention):
    """Attention of each token to the tokens at its place in past frames, and to itself."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__(config)
        self.ring = KvRing()

    def write(self, x: Tensor, rope: Rope, ring: Sequence[Tensor], position: Tensor) -> Tensor:
        """Writes a frame's keys and values into the ring; returns its queries, ``[T, 1, H, D]``.

        Args:
            x: the frame's tokens, ``[1, T, dim]``.
            rope: cosines and sines of the frame's index in the stream, each ``[1, D / 2]``.
            ring: keys and values of past frames, each ``[T, S, H, D]``, written in place.
            position: the frame's index in the stream, int64 ``[1]``.
        """
        projected = self.to_qkv(x).transpose(0, 1)  # Tokens are a batch: each has a ring.
        queries, keys, values = split_heads(projected, self.heads)
        self.ring.write((ring[0], ring[1]), rotate(keys, *rope), values, position, sink=0)
        return rotate(queries, *rope)

    def forward(
        self, x: Tensor, rope: Rope, ring: Sequence[Tensor], position: Tensor, valid_length: Tensor
    ) -> Tensor:
        """Maps a frame's tokens ``[1, T, dim]`` to as many, and writes the ring.

        Args:
            x: as in ``write``.
            rope: as in ``write``.
            ring: as in ``write``.
            position: as in ``write``.
            valid_length: frames in the ring, this one included, int64 ``[1]``.
        """
        queries = self.write(x, rope, ring, position)
        attended = self.ring.attend(queries, (ring[0], ring[1]), valid_length)
        return cast(Tensor, self.to_out(attended.flatten(2).transpose(0, 1)))


class Block(nn.Module):
    """Spatial attention and feed-forward, then temporal attention and feed-forward."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.mlp * config.dim
        self.s_attn = SpatialAttention(config)
        self.s_mlp = Mlp(dim, hidden, "tanh")
        self.s_adaLN_modulation = _Modulation(dim, 6)
        self.t_attn = TemporalAttention(config)
        self.t_mlp = Mlp(dim, hidden, "tanh")
        self.t_adaLN_modulation = _Modulation(dim, 6)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the layers' inputs."""
        return self.s_attn.to_out.bias.dtype

    def spatial(self, x: Tensor, modulation: Tensor, rope: Rope) -> Tensor:
        """Returns the tokens ``[1, T, dim]`` after the spatial half, float32 like ``x``.

        Args:
            x: tokens of a frame.
            modulation: shift, scale and gate of attention, then of the feed-forward, float32
                ``[6, 1, 1, dim]``.
            rope: as in ``SpatialAttention``.
        """
        shift, scale, gate, *of_mlp = modulation.unbind()
        normed = modulated_norm(x, shift, scale, EPS).to(self.dtype)
        x = gated_residual(x, self.s_attn(normed, rope), gate)
        return self._feed_forward(x, self.s_mlp, of_mlp)

    def temporal(
        self,
        x: Tensor,
        modulation: Tensor,
        rope: Rope,
        ring: Sequence[Tensor],
        position: Tensor,
        valid_length: Tensor,
    ) -> Tensor:
        """Returns the tokens after the temporal half; arguments as in ``TemporalAttention``."""
        gate, *of_mlp = modulation[2:].unbind()
        normed = self.temporal_input(x, modulation)
        update = self.t_attn(normed, rope, ring, position, valid_length)
        return self._feed_forward(gated_residual(x, update, gate), self.t_mlp, of_mlp)

    def temporal_input(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Returns the input of temporal attention, ``[1, T, dim]``, in the weights' dtype."""
        return modulated_norm(x, modulation[0], modulation[1], EPS).to(self.dtype)

    def _feed_forward(self, x: Tensor, mlp: nn.Module, modulation: Sequence[Tensor]) -> Tensor:
        shift, scale, gate = modulation
        return gated_residual(x, mlp(modulated_norm(x, shift, scale, EPS).to(self.dtype)), gate)


class _Modulation(nn.Sequential):
    """SiLU and a Linear to several vectors."""

    def __init__(self, dim: int, vectors: int) -> None:
        super().__init__(nn.SiLU(), nn.Linear(dim, vectors * dim))


class _TimeEmbedder(nn.Module):
    """Sinusoid of "Attention Is All You Need", cosines first, and two Linears."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__()
        self.pairs = config.freq_dim // 2
        self.mlp = nn.Sequential(
            nn.Linear(config.freq_dim, config.dim), nn.SiLU(), nn.Linear(config.dim, config.dim)
        )

    def forward(self, timesteps: Tensor, dtype: torch.dtype) -> Tensor:
        """Maps float32 ``[N]`` to ``[N, dim]``."""
        places = torch.arange(self.pairs, device=timesteps.device)
        angles = timesteps[:, None] * torch.exp(-math.log(10000) * places / self.pairs)
        return cast(Tensor, self.mlp(torch.cat([angles.cos(), angles.sin()], -1).to(dtype)))


class _FinalLayer(nn.Module):
    """Modulated norm and a Linear to patches."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.dim, config.patch**2 * config.channels)
        self.adaLN_modulation = _Modulation(config.dim, 2)


class _Embedder(nn.Module):
    """Patch embedding, under the name ``proj`` that checkpoints give it."""

    def __init__(self, config: OasisConfig) -> None:
        super().__init__()
        self.proj = Patches(config.channels, config.dim, config.patch)


class OasisTransformer(nn.Module):
    """Weights of the transformer, and the computations that its components share."""

    def __init__(self, config: OasisConfig, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.grid = grid
        self.x_embedder = _Embedder(config)
        self.t_embedder = _TimeEmbedder(config)
        self.external_cond = nn.Linear(config.actions, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_layer = _FinalLayer(config)

    @property
    def layers(self) -> list[Block]:
        """The blocks, in order."""
        return [cast(Block, block) for block in self.blocks]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights that are not quantized."""
        return self.x_embedder.proj.weight.dtype

    def modulation(self, timesteps: Tensor, action: Tensor) -> Tensor:
        """Returns the vectors that modulate passes at several timesteps.

        Args:
            timesteps: float32 ``[N]``.
            action: float32 ``[1, actions]``.

        Returns:
            float32 ``[N, vectors, dim]``: for each block six of its spatial half and six of its
            temporal half, then two of the final layer.
        """
        embedded = self.t_embedder(timesteps, self.dtype)
        embedded = embedded + self.external_cond(action.to(self.dtype))
        halves = ((block.s_adaLN_modulation, block.t_adaLN_modulation) for block in self.layers)
        made = [half(embedded) for block in halves for half in block]
        made.append(self.final_layer.adaLN_modulation(embedded))
        return torch.cat(made, -1).float().reshape(len(timesteps), self.config.modulations, -1)

    def spatial_rope(self, device: torch.device) -> Rope:
        """Returns cosines and sines of the tokens' places in a frame."""
        head_dim = self.config.head_dim
        return axial_rope(self.grid, head_dim // 4, MAX_FREQ, head_dim, device)

    def velocity(self, x: Tensor, modulation: Tensor) -> Tensor:
        """Maps tokens ``[1, T, dim]`` to a frame's prediction, float32 ``[1, C, h, w]``.

        ``modulation`` is the shift and scale of the final layer, ``[2, 1, 1, dim]``.
        """
        size, (rows, columns) = self.config.patch, self.grid
        normed = modulated_norm(x, modulation[0], modulation[1], EPS).to(self.dtype)
        # A token's values are ordered by row, column and channel.
        patches: Tensor = self.final_layer.linear(normed)
        values = patches.float().reshape(1, rows, columns, size, size, -1)
        frame = values.permute(0, 5, 1, 3, 2, 4)
        return frame.reshape(1, -1, rows * size, columns * size)
