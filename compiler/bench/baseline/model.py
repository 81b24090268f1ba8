"""The public code's causal Wan transformer, as it runs with a cache."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vidc.compiler.bench.baseline.cache import LayerCache, TextCache
from vidc.compiler.bench.baseline.layers import Layer
from vidc.exporters.config import TransformerConfig

ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""PyTorch's attention kernels in the order in which they are preferred where they apply."""


class _Embedder(nn.Module):
    def __init__(self, dim_in: int, dim: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(dim_in, dim)
        self.activation = activation
        self.linear_2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return out


class _Conditions(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.freq_dim = config.freq_dim
        self.time_embedder = _Embedder(config.freq_dim, config.dim, nn.SiLU())
        self.time_proj = nn.Linear(config.dim, 6 * config.dim)
        self.text_embedder = _Embedder(config.text_dim, config.dim, nn.GELU("tanh"))

    def time(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps ``[B, F]`` to the head's ``[B, F, dim]`` and the layers' ``[B, F, 6, dim]``."""
        half = self.freq_dim // 2
        exponent = -torch.arange(half).to(timestep.device, torch.float64).div(half)
        angles = torch.outer(timestep.flatten().double(), torch.pow(10000, exponent))
        sinusoid = torch.cat([torch.cos(angles), torch.sin(angles)], 1)
        embedded = self.time_embedder(sinusoid.to(self.time_proj.weight.dtype))
        layers = self.time_proj(F.silu(embedded)).unflatten(1, (6, -1))
        return embedded.unflatten(0, timestep.shape), layers.unflatten(0, timestep.shape)

    def text(self, embeds: Tensor) -> Tensor:
        """Text embeddings ``[B, L, E]`` to ``[B, L, dim]``."""
        # Prompts come padded already, so that nothing is added, but each is copied.
        padded = [torch.cat([one, one.new_zeros(0, one.shape[1])]) for one in embeds]
        out: Tensor = self.text_embedder(torch.stack(padded))
        return out


class Transformer(nn.Module):
    """The network; parameters are named as in diffusers' ``WanTransformer3DModel``."""

    table: Tensor

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv3d(config.channels, config.dim, config.patch, config.patch)
        self.condition_embedder = _Conditions(config)
        self.blocks = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm_out = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.proj_out = nn.Linear(config.dim, config.channels * config.patch[1] * config.patch[2])
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 2, config.dim))

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self.proj_out.weight.dtype

    def forward(
        self,
        latent: Tensor,
        timestep: Tensor,
        embeds: Tensor,
        caches: Sequence[LayerCache],
        text_caches: Sequence[TextCache],
        first_frame: int,
        keep_sink: bool,
    ) -> Tensor:
        """The flow ``[B, F, C, h, w]`` of a latent of that shape; moves the caches on.

        Args:
            latent: in the weights' dtype.
            timestep: ``[B, F]`` float32.
            embeds: the prompt, ``[B, L, E]`` in the weights' dtype.
            caches: one for each layer.
            text_caches: the same.
            first_frame: absolute index of the first latent frame, below ``ROTARY_FRAMES``.
            keep_sink: leave the sink's keys and values as they are.
        """
        patches = [self.patch_embedding(one[None]) for one in latent.transpose(1, 2)]
        grid = torch.tensor([list(one.shape[2:]) for one in patches])
        x = torch.cat([one.flatten(2).transpose(1, 2) for one in patches])
        time, modulation = self.condition_embedder.time(timestep)
        text = self.condition_embedder.text(embeds)
        updates = []
        with sdpa_kernel(ATTENTION, set_priority=True):
            for layer, cache, text_cache in zip(self.blocks, caches, text_caches, strict=True):
                x, update = layer(
                    x, modulation, grid, self.table, text, cache, text_cache, first_frame, keep_sink
                )
                updates.append(update)
        for cache, update in zip(caches, updates, strict=True):
            cache.apply(update)
        return self._unpatchify(self._head(x, time), grid)

    def _head(self, x: Tensor, time: Tensor) -> Tensor:
        frames = (time.shape[1], x.shape[1] // time.shape[1])
        shift, scale = (self.scale_shift_table.unsqueeze(1) + time.unsqueeze(2)).chunk(2, dim=2)
        out: Tensor = self.proj_out(self.norm_out(x).unflatten(1, frames) * (1 + scale) + shift)
        return out

    def _unpatchify(self, x: Tensor, grid: Tensor) -> Tensor:
        _, ph, pw = self.config.patch
        latents = []
        for one, (frames, rows, cols) in zip(x, grid.tolist(), strict=True):
            pixels = one.view(frames, rows, cols, ph, pw, self.config.channels)
            pixels = torch.einsum("fhwqrc->cfhqwr", pixels)
            latents.append(pixels.reshape(-1, frames, rows * ph, cols * pw))
        return torch.stack(latents).transpose(1, 2)
