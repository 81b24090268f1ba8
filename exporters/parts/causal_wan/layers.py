"""Layers of the causal Wan transformer, with the parameter names of diffusers' Wan model.

Norms, modulation, rotation and the sum of the branches are computed in float32, everything else in
the weights' dtype. In bf16, rounding that sum three times a layer would be most of the error.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.kv_ring import KvRing
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope


class RmsNorm(nn.Module):
    """RMS normalization over the whole width, across heads."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same shape and dtype."""
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Projections of one attention; ``queries`` and ``keys`` are normalized."""

    shared_inputs: tuple[str, ...] = ("to_k", "to_v")
    """Linear layers that read the same tensor: in cross-attention, queries read another one."""

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

    def queries(self, x: Tensor) -> Tensor:
        """``[B, T, dim]`` to ``[B, T, H, D]``."""
        return self._heads(self.norm_q(self.to_q(x)))

    def keys(self, x: Tensor) -> Tensor:
        """``[B, T, dim]`` to ``[B, T, H, D]``."""
        return self._heads(self.norm_k(self.to_k(x)))

    def values(self, x: Tensor) -> Tensor:
        """``[B, T, dim]`` to ``[B, T, H, D]``."""
        return self._heads(self.to_v(x))

    def out(self, attended: Tensor) -> Tensor:
        """``[B, T, H, D]`` to ``[B, T, dim]``."""
        projected: Tensor = self.to_out[0](attended.flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.heads, -1)


class SelfAttention(Attention):
    """Attention to the tokens in a ring."""

    shared_inputs = ("to_q", "to_k", "to_v")

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.ring = KvRing()


def equal_last_rows(text_embeds: Tensor) -> Tensor:
    """Counts the last rows of a text that are equal: its padding, or the last row alone.

    Args:
        text_embeds: ``[B, L, E]``.

    Returns:
        float32 ``[B]``, from 1 to ``L``.
    """
    length = text_embeds.shape[1]
    differs = (text_embeds != text_embeds[:, -1:]).to(torch.float32).amax(2)
    places = torch.arange(1, length + 1, dtype=torch.float32, device=text_embeds.device)
    return (length - (differs * places).amax(1)).clamp(min=1)


class _GeluProjection(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """Linear, tanh-GELU, Linear; the middle entry of ``net`` keeps diffusers' numbering."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.net = nn.Sequential(_GeluProjection(dim, inner), nn.Identity(), nn.Linear(inner, dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, dim]`` to the same shape."""
        out: Tensor = self.net(x)
        return out


class TwoLinear(nn.Module):
    """``linear_2(activation(linear_1(x)))``: the time and the text embedder."""

    def __init__(self, dim_in: int, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(dim_in, dim)
        self.activation = activation
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim_in]`` to ``[..., dim]``."""
        out: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return out


class ConditionEmbedder(nn.Module):
    """Embeds timesteps and text."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.time_embedder = TwoLinear(config.freq_dim, config.dim, nn.SiLU())
        self.time_proj = nn.Linear(config.dim, 6 * config.dim)
        self.text_embedder = TwoLinear(config.text_dim, config.dim, nn.GELU("tanh"))

    def time(self, timestep: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Timesteps ``[B, F]`` to the embedding ``[B, F, dim]`` and modulation ``[B, F, 6, dim]``.

        Both float32, computed in ``dtype``. The sinusoid is that of "Attention Is All You Need",
        cosines first.
        """
        half = self.freq_dim // 2
        exponent = -math.log(10000) * torch.arange(half, device=timestep.device) / half
        angles = timestep[..., None].float() * torch.exp(exponent)
        sinusoid = torch.cat([torch.cos(angles), torch.sin(angles)], -1)
        embedded = self.time_embedder(sinusoid.to(dtype))
        modulation = self.time_proj(F.silu(embedded)).reshape(*timestep.shape, 6, -1)
        return embedded.float(), modulation.float()


def _frames(x: Tensor, frames: int) -> Tensor:
    return x.reshape(x.shape[0], frames, -1, x.shape[2])


def layer_norm(x: Tensor, eps: float, norm: nn.LayerNorm | None = None) -> Tensor:
    """Layer normalization of float32 ``[..., dim]``, affine where ``norm`` is given."""
    weight = None if norm is None else norm.weight.float()
    bias = None if norm is None else norm.bias.float()
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Layer norm, then a shift and scale for each latent frame; float32.

    Args:
        x: ``[B, F * tokens, dim]``.
        shift: ``[B, F, dim]`` float32.
        scale: ``[B, F, dim]`` float32.
        eps: of the norm.
    """
    frames = _frames(layer_norm(x, eps), shift.shape[1])
    return (frames * (1 + scale[:, :, None]) + shift[:, :, None]).flatten(1, 2)


def gated_residual(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """``x + update * gate`` in float32, with one gate ``[B, F, dim]`` for each latent frame."""
    gated = _frames(update.float(), gate.shape[1]) * gate[:, :, None]
    return x + gated.flatten(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of adjacent channel pairs.

    Args:
        x: ``[B, T, H, D]``.
        cos: ``[T, D / 2]`` float32.
        sin: ``[T, D / 2]`` float32.
    """
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
    """Self-attention through the ring, cross-attention to the prompt, feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.attn1 = SelfAttention(config)
        self.attn2 = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, config.eps)
        self.ffn = FeedForward(config.dim, config.ffn_dim)
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 6, config.dim))

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.norm2.weight.dtype

    def modulation(self, time: Tensor) -> tuple[Tensor, ...]:
        """Shift, scale, gate of attention, then of the feed-forward, each ``[B, F, dim]``."""
        return (self.scale_shift_table.float()[:, None] + time).unbind(2)

    def attention_input(self, x: Tensor, time: Tensor) -> Tensor:
        """Returns the input of self-attention, ``[B, T, dim]``, in the weights' dtype."""
        shift, scale = self.modulation(time)[:2]
        return modulated_norm(x, shift, scale, self.eps).to(self.dtype)

    def write_keys_values(
        self,
        normed: Tensor,
        rope: tuple[Tensor, Tensor],
        ring: tuple[Tensor, Tensor],
        position: Tensor,
        sink: int,
    ) -> None:
        """Writes this layer's keys and values into the ring, for a pass that ends with them.

        Such a pass has no queries here: ``qk_norm_rope`` gets the keys in their place, and its
        first result is not used.
        """
        attention = self.attn1
        projected, weight = attention.to_k(normed), attention.norm_k.weight
        _, keys = qk_norm_rope(
            projected, projected, weight, weight, *rope, attention.heads, self.eps
        )
        attention.ring.write(ring, keys, attention.values(normed), position, sink)

    def _write_ring(
        self,
        normed: Tensor,
        rope: tuple[Tensor, Tensor],
        ring: tuple[Tensor, Tensor],
        position: Tensor,
        sink: int,
    ) -> Tensor:
        """Writes keys and values into the ring; returns the queries, ``[B, T, H, D]``.

        A backend may fuse these calls into one kernel; backend ``aoti`` searches graphs for them.
        """
        attention = self.attn1
        queries: Tensor
        queries, keys = qk_norm_rope(
            attention.to_q(normed),
            attention.to_k(normed),
            attention.norm_q.weight,
            attention.norm_k.weight,
            *rope,
            attention.heads,
            self.eps,
        )
        attention.ring.write(ring, keys, attention.values(normed), position, sink)
        return queries

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        rope: tuple[Tensor, Tensor],
        text: tuple[Tensor, Tensor, Tensor],
        ring: tuple[Tensor, Tensor],
        position: Tensor,
        valid_length: Tensor,
        sink: int,
    ) -> Tensor:
        """One layer over a block of latent frames.

        Args:
            x: ``[B, T, dim]`` float32, like the result.
            time: modulation, ``[B, F, 6, dim]`` float32.
            rope: cosines and sines, each ``[T, D / 2]`` float32.
            text: keys and values of the prompt, each ``[B, L, H, D]``, and the numbers of distinct
                keys, int32 ``[B]``: the last one is repeated to the end.
            ring: keys and values of the window, each ``[B, S, H, D]``, written in place.
            position: absolute index of the block's first token, int64 ``[1]``.
            valid_length: slots that hold tokens once the block is written, int64 ``[1]``.
            sink: in tokens.
        """
        _, _, gate_attention, shift, scale, gate_ffn = self.modulation(time)
        queries = self._write_ring(self.attention_input(x, time), rope, ring, position, sink)
        attended = self.attn1.ring.attend(queries, ring, valid_length)
        x = gated_residual(x, self.attn1.out(attended), gate_attention)

        queries = self.attn2.queries(layer_norm(x, self.eps, self.norm2).to(self.dtype))
        x = x + self.attn2.out(padded_attention(queries, *text))

        hidden = self.ffn(modulated_norm(x, shift, scale, self.eps).to(self.dtype))
        return gated_residual(x, hidden, gate_ffn)
