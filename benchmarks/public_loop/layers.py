"""The public code's pass through the transformer, over the parameters of ``CausalWan``."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from public_loop.cache import LayerCache, TextCache, Update
from vidc.exporters.parts.causal_wan.layers import Attention, Block, RmsNorm
from vidc.exporters.parts.causal_wan.network import CausalWan

ROTARY_FRAMES = 1024
"""Latent frames that the public code's table of rotations holds: a stream ends there."""
ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""PyTorch's attention kernels in the order in which they are preferred where they apply."""


def rotary_table(head_dim: int, device: torch.device) -> Tensor:
    """Rotations of each channel pair at each position, complex128 ``[1024, D / 2]``."""
    position = torch.arange(ROTARY_FRAMES, dtype=torch.float64)
    angles = [
        torch.outer(position, 10000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs))
        for pairs in _pairs(head_dim)
    ]
    table = torch.cat([torch.polar(torch.ones_like(axis), axis) for axis in angles], 1)
    return table.to(device)


def _pairs(head_dim: int) -> list[int]:
    """Channel pairs that turn with time, rows and columns."""
    side = head_dim // 6
    return [head_dim // 2 - 2 * side, side, side]


def rotate(x: Tensor, grid: Tensor, table: Tensor, first_frame: int) -> Tensor:
    """Rotary embedding of ``[B, T, H, D]`` in complex128, sample by sample.

    ``grid`` holds frames, rows and columns of each sample, int64 ``[B, 3]`` on the CPU.
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


def _norm(norm: RmsNorm, x: Tensor) -> Tensor:
    exact = x.float()
    exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + norm.eps)
    return exact.type_as(x) * norm.weight


def _queries(attention: Attention, x: Tensor) -> Tensor:
    queries = _norm(attention.norm_q, attention.to_q(x))
    return queries.view(*x.shape[:2], attention.heads, -1)


def _keys_values(attention: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = _norm(attention.norm_k, attention.to_k(x)), attention.to_v(x)
    shape = (*x.shape[:2], attention.heads, -1)
    return keys.view(shape), values.view(shape)


def _attend(attention: Attention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    attended = F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    )
    return attention.out(attended.transpose(1, 2).contiguous())


class Layer(nn.Module):
    """One layer over some latent frames: what ``torch.compile`` is given."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

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
        """Tokens ``[B, T, dim]`` to the same, and what is to be written to the cache.

        Args:
            x: in the weights' dtype, as is everything but the table.
            time: modulation, ``[B, F, 6, dim]``.
            grid: as ``rotate`` takes it.
            table: of rotations.
            text: the prompt, ``[B, L, dim]``.
            cache: of this layer.
            text_cache: filled if it is empty.
            first_frame: absolute index of the first latent frame.
            keep_sink: leave the sink's keys and values as they are.
        """
        block = self.block
        frames = (time.shape[1], x.shape[1] // time.shape[1])
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (
            block.scale_shift_table.unsqueeze(1) + time
        ).chunk(6, dim=2)
        normed = self._norm(x).unflatten(1, frames) * (1 + scale) + shift
        attended, update = self._self_attention(
            normed.flatten(1, 2), grid, table, cache, first_frame, keep_sink
        )
        x = x + (attended.unflatten(1, frames) * gate).flatten(1, 2)
        queries = _queries(block.attn2, block.norm2(x))
        if "prompt" not in text_cache:
            text_cache["prompt"] = _keys_values(block.attn2, text)
        x = x + _attend(block.attn2, queries, *text_cache["prompt"])
        normed = self._norm(x).unflatten(1, frames) * (1 + ffn_scale) + ffn_shift
        return x + (block.ffn(normed.flatten(1, 2)).unflatten(1, frames) * ffn_gate).flatten(
            1, 2
        ), update

    def _norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.block.eps)

    def _self_attention(
        self,
        x: Tensor,
        grid: Tensor,
        table: Tensor,
        cache: LayerCache,
        first_frame: int,
        keep_sink: bool,
    ) -> tuple[Tensor, Update]:
        attention = self.block.attn1
        queries, (keys, values) = _queries(attention, x), _keys_values(attention, x)
        end = first_frame * int(grid[0, 1:].prod().item()) + x.shape[1]
        queries = rotate(queries, grid, table, first_frame)
        keys = rotate(keys, grid, table, first_frame)
        slots = cache.place(x.shape[1], end, keep_sink)
        keys, values = keys[:, slots.skipped :], values[:, slots.skipped :]
        attended = _attend(attention, queries, *cache.extended(slots, keys, values))
        return attended, Update(end, slots, keys, values)


class Transformer:
    """A pass through all layers; moves the caches on."""

    def __init__(self, network: CausalWan, backend: str | None) -> None:
        self.network = network
        self.dtype = network.dtype
        self.device = network.proj_out.weight.device
        self.table = rotary_table(network.config.head_dim, self.device)
        self.layers = [Layer(block) for block in network.layers]
        if backend is not None:
            for layer in self.layers:
                layer.compile(backend=backend)

    def __call__(
        self,
        latent: Tensor,
        timestep: Tensor,
        embeds: Tensor,
        caches: list[LayerCache],
        text_caches: list[TextCache],
        first_frame: int,
        keep_sink: bool,
    ) -> Tensor:
        """The flow of a latent, both ``[B, F, C, h, w]`` in the weights' dtype.

        Args:
            latent: noisy or clean.
            timestep: ``[B, F]``.
            embeds: the prompt, ``[B, L, E]`` in the weights' dtype.
            caches: one for each layer.
            text_caches: one for each layer.
            first_frame: absolute index of the first latent frame.
            keep_sink: leave the sink's keys and values as they are.
        """
        patches = [self.network.patch_embedding(one[None]) for one in latent.transpose(1, 2)]
        grid = torch.tensor([list(one.shape[2:]) for one in patches])
        x = torch.cat([one.flatten(2).transpose(1, 2) for one in patches])
        time, modulation = self._time(timestep)
        # Prompts come padded already, so that nothing is added, but each is copied.
        padded = [torch.cat([one, one.new_zeros(0, one.shape[1])]) for one in embeds]
        text = self.network.condition_embedder.text_embedder(torch.stack(padded))
        updates = []
        with sdpa_kernel(ATTENTION, set_priority=True):
            for layer, cache, text_cache in zip(self.layers, caches, text_caches, strict=True):
                x, update = layer(
                    x, modulation, grid, self.table, text, cache, text_cache, first_frame, keep_sink
                )
                updates.append(update)
        for cache, update in zip(caches, updates, strict=True):
            cache.apply(update)
        return self._unpatchify(self._head(x, time), grid)

    def _time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps to the head's ``[B, F, dim]`` and the layers' ``[B, F, 6, dim]``."""
        embedder = self.network.condition_embedder
        half = embedder.freq_dim // 2
        exponent = -torch.arange(half).to(self.device, torch.float64).div(half)
        angles = torch.outer(timestep.flatten().double(), torch.pow(10000, exponent))
        sinusoid = torch.cat([torch.cos(angles), torch.sin(angles)], 1).to(self.dtype)
        embedded = embedder.time_embedder(sinusoid)
        layers = embedder.time_proj(F.silu(embedded)).unflatten(1, (6, -1))
        return embedded.unflatten(0, timestep.shape), layers.unflatten(0, timestep.shape)

    def _head(self, x: Tensor, time: Tensor) -> Tensor:
        network = self.network
        frames = (time.shape[1], x.shape[1] // time.shape[1])
        table = network.scale_shift_table.unsqueeze(1)
        shift, scale = (table + time.unsqueeze(2)).chunk(2, dim=2)
        normed = F.layer_norm(x, x.shape[-1:], eps=network.config.eps).unflatten(1, frames)
        out: Tensor = network.proj_out(normed * (1 + scale) + shift)
        return out

    def _unpatchify(self, x: Tensor, grid: Tensor) -> Tensor:
        config = self.network.config
        _, ph, pw = config.patch
        latents = []
        for one, (frames, rows, cols) in zip(x, grid.tolist(), strict=True):
            pixels = one.view(frames, rows, cols, ph, pw, config.channels)
            pixels = torch.einsum("fhwqrc->cfhqwr", pixels)
            latents.append(pixels.reshape(-1, frames, rows * ph, cols * pw))
        return torch.stack(latents).transpose(1, 2)
