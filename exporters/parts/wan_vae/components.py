"""Components of the Wan VAE with their inputs, outputs and states."""

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.wan_vae.config import TEMPORAL_STRIDE
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.part import WanVaePart
from vidc.exporters.parts.wan_vae.streaming import VaeDecode, VaeEncode, remembered
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec


def components(part: WanVaePart, vae: nn.Module) -> dict[str, Component]:
    """Returns the streaming components of a VAE, by name.

    With F latent frames in a block, ``vae_decode_first`` decodes the first block of a clip to
    4F - 3 video frames and ``vae_decode`` every later block to 4F. ``vae_encode_first`` and
    ``vae_encode`` do the reverse. Both decoders share the states ``vae.decoder.cache.<i>``, both
    encoders ``vae.encoder.cache.<i>``; the component for the first block overwrites them.

    Args:
        part: sizes of the VAE; F is ``part.block``.
        vae: network that ``create`` returns for ``part.config``; shared, not copied.
    """
    dtype = next(vae.parameters()).dtype
    decoder, encoder = _caches(part, dtype)
    result = {}
    for suffix, first in (("_first", True), ("", False)):
        latent, frames = part.latent_shape, part.frames_shape(first)
        result[f"vae_decode{suffix}"] = Component(
            f"vae_decode{suffix}",
            VaeDecode(part.config, vae, dtype, first),
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
            VaeEncode(part.config, vae, dtype, first),
            Signature(
                (
                    TensorSpec("frames", frames, "float32", Role.INPUT),
                    *_states("vae.encoder.cache", encoder, dtype, first),
                    TensorSpec("latent", latent, "float32", Role.OUTPUT),
                )
            ),
        )
    return result


def _caches(part: WanVaePart, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the caches of decoder and encoder between blocks, as meta tensors."""
    network = create(part.config, dtype, "meta")

    def clip(channels: int, frames: int, size: tuple[int, ...]) -> Tensor:
        return torch.empty((part.batch, channels, frames, *size), dtype=dtype, device="meta")

    latent = clip(part.config.z_dim, 1, part.latent_shape[-2:])
    pixels = (part.height, part.width)
    return (
        remembered(network.get_submodule("decoder"), latent, latent),
        remembered(
            network.get_submodule("encoder"), clip(3, 1, pixels), clip(3, TEMPORAL_STRIDE, pixels)
        ),
    )


def _states(
    name: str, caches: tuple[Tensor, ...], dtype: torch.dtype, first: bool
) -> tuple[TensorSpec, ...]:
    """Returns the specs of the caches, which have the dtype of the convolutions' inputs."""
    access = Access.WRITE if first else Access.READ_WRITE
    return tuple(
        TensorSpec(f"{name}.{i}", tuple(cache.shape), DTYPE_NAMES[dtype], Role.STATE, access)
        for i, cache in enumerate(caches)
    )
