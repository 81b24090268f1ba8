"""The causal Wan transformer: its parameters and the layers that its components share."""

from typing import cast

import torch
from torch import Tensor, nn

from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.causal_wan.layers import Block, ConditionEmbedder, modulated_norm


class CausalWan(nn.Module):
    """A causal Wan transformer's parameters, named as in diffusers' ``WanTransformer3DModel``."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embedding = nn.Conv3d(config.channels, config.dim, config.patch, config.patch)
        self.condition_embedder = ConditionEmbedder(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.proj_out = nn.Linear(config.dim, config.channels * config.patch[1] * config.patch[2])
        self.scale_shift_table = nn.Parameter(torch.zeros(1, 2, config.dim))

    @property
    def layers(self) -> list[Block]:
        """``blocks``, typed."""
        return [cast(Block, block) for block in self.blocks]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights that are not quantized."""
        return self.scale_shift_table.dtype

    def patchify(self, latent: Tensor) -> Tensor:
        """``[B, F, C, h, w]`` to float32 tokens ``[B, F * rows * cols, dim]``."""
        batch, frames, channels, height, width = latent.shape
        _, ph, pw = self.config.patch
        patches = (
            latent.to(self.dtype)
            .reshape(batch, frames, channels, height // ph, ph, width // pw, pw)
            .permute(0, 1, 3, 5, 2, 4, 6)
            .reshape(batch, -1, channels * ph * pw)
        )
        # A convolution whose stride is its kernel is a matrix product.
        return nn.functional.linear(
            patches, self.patch_embedding.weight.flatten(1), self.patch_embedding.bias
        ).float()

    def head(self, x: Tensor, time: Tensor, rows: int) -> Tensor:
        """Tokens ``[B, T, dim]`` and time embedding ``[B, F, dim]``, float32, to the flow.

        Float32 ``[B, F, C, h, w]``.
        """
        shift, scale = (self.scale_shift_table.float()[:, None] + time[:, :, None]).unbind(2)
        normed = modulated_norm(x, shift, scale, self.config.eps).to(self.dtype)
        out = self.proj_out(normed).float()
        batch, frames = time.shape[:2]
        _, ph, pw = self.config.patch
        flow: Tensor = (
            out.reshape(batch, frames, rows, -1, ph, pw, self.config.channels)
            .permute(0, 1, 6, 2, 4, 3, 5)
            .reshape(batch, frames, self.config.channels, rows * ph, -1)
        )
        return flow
