"""diffusers' Wan VAE, as its components run it."""

import torch
from torch import nn

from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.precision import sum_in_float32


def create(config: VaeConfig, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """diffusers' ``AutoencoderKLWan`` of these sizes; its weights are to be loaded.

    It computes in ``dtype``. In bf16, all layers but convolutions and attention compute in float32.
    """
    from diffusers import AutoencoderKLWan

    with torch.device(device):
        vae: nn.Module = AutoencoderKLWan(
            base_dim=config.base_dim,
            z_dim=config.z_dim,
            dim_mult=list(config.dim_mult),
            num_res_blocks=config.res_blocks,
            temperal_downsample=list(config.temporal_downsample),
            latents_mean=list(config.latents_mean),
            latents_std=list(config.latents_std),
        )
    if dtype is torch.bfloat16:
        sum_in_float32(vae)
    # diffusers' own `to` warns about parts kept in float32, of which this model has none.
    return nn.Module.to(vae, dtype).eval().requires_grad_(False)
