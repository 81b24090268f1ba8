"""Weights for a Wan VAE without a checkpoint."""

import math

import torch
from torch import Tensor

from vidc.exporters.draw import AFTER_SILU
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.network import create


def random_state_dict(config: VaeConfig, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights drawn from ``seed``, under diffusers' names, that make every part matter.

    Decoded unit normal latents fill the range of pixels without saturating, and each cache
    changes the frames that follow. The draw is made in float32 on the CPU, so all dtypes share it.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        key: _draw(key, value.shape, generator).to(dtype)
        for key, value in create(config, torch.float32, "meta").state_dict().items()
    }


def _draw(key: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if key.endswith("gamma"):
        return 1 + 0.1 * noise
    if key.endswith("bias"):
        return 0.1 * noise
    return noise * (_gain(key) / math.sqrt(math.prod(shape[1:])))


def _gain(key: str) -> float:
    """Standard deviation of a layer's output for an input of unit variance."""
    if key == "decoder.conv_out.weight":
        return 0.35 * AFTER_SILU
    if ".conv1." in key or ".conv2." in key or ".conv_out." in key:
        return AFTER_SILU
    if ".to_qkv." in key:
        return 2.0  # Peaks the attention, whose logits then vary by 4 whatever the width.
    return 1.0
