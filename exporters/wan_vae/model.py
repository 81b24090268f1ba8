"""The Wan VAE's components: what they take, return and keep."""

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.config import ModelConfig, VaeConfig
from vidc.exporters.wan_vae.precision import sum_in_float32
from vidc.exporters.wan_vae.streaming import VaeDecode, VaeEncode, remembered
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec

TEMPORAL_STRIDE = 4
"""Video frames to a latent frame; the first latent frame of a clip is a single video frame."""


def create(config: VaeConfig, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """diffusers' ``AutoencoderKLWan`` of these sizes; its weights are to be loaded.

    Its convolutions compute in ``dtype``, what is between them in float32.
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
    if dtype is not torch.float32:
        sum_in_float32(vae)
    # diffusers' own `to` warns about parts kept in float32, of which this model has none.
    return nn.Module.to(vae, dtype).eval().requires_grad_(False)


def components(config: ModelConfig, vae: nn.Module, dtype: torch.dtype) -> dict[str, Component]:
    """The streaming components of a VAE, by name; F is ``config.stream.block``.

    ``vae_decode_first`` turns the first F latent frames of a clip into 4F - 3 video frames and
    ``vae_decode`` every later F into 4F; ``vae_encode_first`` and ``vae_encode`` go the other way.
    The two of a direction share their states, ``vae.decoder.cache.<i>`` or
    ``vae.encoder.cache.<i>``: the first one writes them whatever they held.

    Args:
        vae: what ``create`` makes of ``config.vae`` and ``dtype``; shared, not copied.
    """
    decoder, encoder = _caches(config, dtype)
    result = {}
    for suffix, first in (("_first", True), ("", False)):
        latent, frames = _block_shapes(config, first)
        result[f"vae_decode{suffix}"] = Component(
            f"vae_decode{suffix}",
            VaeDecode(config.vae, vae, dtype, first),
            Signature(
                (
                    TensorSpec("latent", latent, "float32", Role.INPUT),
                    *_states("vae.decoder.cache", decoder, dtype, first),
                    TensorSpec("frames", frames, "float32", Role.OUTPUT),
                )
            ),
        )
        result[f"vae_encode{suffix}"] = Component(
            f"vae_encode{suffix}",
            VaeEncode(config.vae, vae, dtype, first),
            Signature(
                (
                    TensorSpec("frames", frames, "float32", Role.INPUT),
                    *_states("vae.encoder.cache", encoder, dtype, first),
                    TensorSpec("latent", latent, "float32", Role.OUTPUT),
                )
            ),
        )
    return result


def _block_shapes(config: ModelConfig, first: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a block's latents [B, F, C, h, w] and of its frames [B, frames, 3, H, W]."""
    stream = config.stream
    frames = TEMPORAL_STRIDE * stream.block - (TEMPORAL_STRIDE - 1 if first else 0)
    return (
        (stream.batch, stream.block, config.vae.z_dim, *config.latent_size),
        (stream.batch, frames, 3, stream.height, stream.width),
    )


def _caches(
    config: ModelConfig, dtype: torch.dtype
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What the decoder and what the encoder remember between blocks, as meta tensors."""
    stream = config.stream
    network = create(config.vae, dtype, "meta")

    def clip(channels: int, frames: int, size: tuple[int, int]) -> Tensor:
        return torch.empty((stream.batch, channels, frames, *size), dtype=dtype, device="meta")

    latent = clip(config.vae.z_dim, 1, config.latent_size)
    pixels = (stream.height, stream.width)
    return (
        remembered(network.get_submodule("decoder"), latent, latent),
        remembered(
            network.get_submodule("encoder"), clip(3, 1, pixels), clip(3, TEMPORAL_STRIDE, pixels)
        ),
    )


def _states(
    name: str, caches: tuple[Tensor, ...], dtype: torch.dtype, first: bool
) -> tuple[TensorSpec, ...]:
    """A convolution remembers its input as it takes it: in its weights' dtype."""
    access = Access.WRITE if first else Access.READ_WRITE
    return tuple(
        TensorSpec(f"{name}.{i}", tuple(cache.shape), DTYPE_NAMES[dtype], Role.STATE, access)
        for i, cache in enumerate(caches)
    )
