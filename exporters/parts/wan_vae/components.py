"""Components of the Wan VAE with their inputs, outputs and states."""

from functools import partial

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.streaming_vae import TEMPORAL_STRIDE
from vidc.exporters.parts.wan_vae.network import create
from vidc.exporters.parts.wan_vae.part import WanVaePart
from vidc.exporters.parts.wan_vae.streaming import VaeDecode, VaeEncode, remembered


def components(part: WanVaePart, vae: nn.Module) -> dict[str, Component]:
    """Returns the streaming components of a VAE, by name.

    Args:
        part: sizes of the VAE.
        vae: network that ``create`` returns for ``part.config``; shared, not copied.
    """
    dtype = next(vae.parameters()).dtype
    return part.streaming_components(
        partial(VaeDecode, part.config, vae, dtype, chunk=part.decoded_chunk),
        partial(VaeEncode, part.config, vae, dtype),
        *_caches(part, dtype),
        dtype=dtype,
    )


def _caches(part: WanVaePart, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the caches of decoder and encoder between blocks, as meta tensors.

    Stored, they have the dtype of the convolutions' inputs.
    """
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
