"""Oasis's VAE: a vision transformer that encodes, another one that decodes.

Norms, rotation and the sum of the branches are computed in float32, everything else in the weights'
dtype.
"""

from typing import cast

import torch
from torch import Tensor, nn

from vidc.exporters.parts.causal_wan.layers import layer_norm, rotate
from vidc.exporters.parts.oasis.layers import Mlp, Patches, attend, axial_rope, split_heads
from vidc.exporters.parts.oasis_vae.config import EPS, OasisVaeConfig

COLORS = 3


class _Attention(nn.Module):
    """Self-attention of all tokens; half of a head turns with the token's place."""

    def __init__(self, config: OasisVaeConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.dim, 3 * config.dim)
        self.proj = nn.Linear(config.dim, config.dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Maps ``[1, T, dim]``."""
        queries, keys, values = split_heads(self.qkv(x), self.heads)
        attended = attend(rotate(queries, *rope), rotate(keys, *rope), values)
        return cast(Tensor, self.proj(attended))


class _Block(nn.Module):
    """Attention and feed-forward, each after a norm."""

    def __init__(self, config: OasisVaeConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, EPS)
        self.attn = _Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, EPS)
        self.mlp = Mlp(config.dim, config.mlp * config.dim, "none")

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Maps float32 ``[1, T, dim]``."""
        dtype = self.norm1.weight.dtype
        x = x + self.attn(layer_norm(x, EPS, self.norm1).to(dtype), rope).float()
        update = self.mlp(layer_norm(x, EPS, self.norm2).to(dtype))
        return cast(Tensor, x + update.float())


class _Embedder(nn.Module):
    """Patches under the name ``proj`` that checkpoints give them."""

    def __init__(self, config: OasisVaeConfig) -> None:
        super().__init__()
        self.proj = Patches(COLORS, config.dim, config.patch)


class OasisVae(nn.Module):
    """Encoder and decoder for images of one size.

    Args:
        config: sizes.
        grid: rows and columns of an image's latents.
    """

    def __init__(self, config: OasisVaeConfig, grid: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.grid = grid
        self.patch_embed = _Embedder(config)
        self.encoder = nn.ModuleList(_Block(config) for _ in range(config.encoder_layers))
        self.enc_norm = nn.LayerNorm(config.dim, EPS)
        self.quant_conv = nn.Linear(config.dim, 2 * config.channels)
        self.post_quant_conv = nn.Linear(config.channels, config.dim)
        self.decoder = nn.ModuleList(_Block(config) for _ in range(config.decoder_layers))
        self.dec_norm = nn.LayerNorm(config.dim, EPS)
        self.predictor = nn.Linear(config.dim, COLORS * config.patch**2)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.enc_norm.weight.dtype

    def encode(self, image: Tensor) -> Tensor:
        """Returns the mean of an image's latents, scaled, float32 ``[1, C, h, w]``.

        Args:
            image: float32 ``[1, 3, H, W]`` from -1 to 1.
        """
        x = self._run(self.encoder, self.patch_embed.proj(image), self.enc_norm)
        moments: Tensor = self.quant_conv(x)
        means = moments[..., : self.config.channels].float().transpose(1, 2)
        return means.reshape(1, -1, *self.grid) * self.config.scale

    def decode(self, latent: Tensor) -> Tensor:
        """Returns an image, float32 ``[1, 3, H, W]`` from -1 to 1 and a little beyond.

        Args:
            latent: scaled, float32 ``[1, C, h, w]``.
        """
        size, (rows, columns) = self.config.patch, self.grid
        tokens = (latent / self.config.scale).flatten(2).transpose(1, 2).to(self.dtype)
        x = self._run(self.decoder, self.post_quant_conv(tokens).float(), self.dec_norm)
        # A token's values are ordered by color, row and column.
        patches: Tensor = self.predictor(x)
        values = patches.float().reshape(1, rows, columns, COLORS, size, size)
        image = values.permute(0, 3, 1, 4, 2, 5)
        return image.reshape(1, COLORS, rows * size, columns * size)

    def _run(self, blocks: nn.ModuleList, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Returns tokens after all blocks and a norm, in the weights' dtype."""
        head_dim, places = self.config.head_dim, self.grid[0] * self.grid[1]
        rope = axial_rope(self.grid, head_dim // 8, places, head_dim, x.device)
        for block in blocks:
            x = block(x, rope)
        return layer_norm(x, EPS, norm).to(self.dtype)
