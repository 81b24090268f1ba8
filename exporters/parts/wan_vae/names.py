"""Names of a Wan VAE's weights in the checkpoints that carry them."""

from collections.abc import Mapping
from typing import TypeVar

from vidc.exporters.checkpoint.layout import Layout

T = TypeVar("T")


def to_diffusers(checkpoint: Mapping[str, T]) -> dict[str, T]:
    """A checkpoint with the names of ``Wan2.1_VAE.pth`` under diffusers' names.

    Holds for two residual blocks and the multipliers (1, 2, 4, 4), as released, at any width. A
    name that is not part of that model keeps its name. The values may be anything.
    """
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    converted: dict[str, T] = convert_wan_vae_to_diffusers(dict(checkpoint))
    return converted


LAYOUTS = (
    Layout(
        "diffusers autoencoder",
        ("encoder.down_blocks", "encoder.mid_block", "decoder.mid_block", "decoder.up_blocks"),
    ),
    Layout(
        "original Wan VAE",
        ("encoder.downsamples", "encoder.middle", "decoder.middle", "decoder.upsamples"),
        to_diffusers,
    ),
)
