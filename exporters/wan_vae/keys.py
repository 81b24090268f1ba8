"""Names of a Wan VAE's weights in the checkpoints that carry them."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

T = TypeVar("T")

Layout = Literal["diffusers", "original"]

_MARKS: dict[Layout, tuple[str, ...]] = {
    "diffusers": ("encoder.down_blocks.", "encoder.mid_block.", "decoder.up_blocks."),
    "original": ("encoder.downsamples.", "encoder.middle.", "decoder.upsamples."),
}


def layout(keys: Iterable[str]) -> Layout | None:
    """Whose names these are: diffusers', those of ``Wan2.1_VAE.pth``, or neither's.

    Other autoencoders share diffusers' block names; only this one has norms called gamma.
    """
    gammas = [key for key in keys if key.endswith(".gamma")]
    for name, prefixes in _MARKS.items():
        if any(key.startswith(prefixes) for key in gammas):
            return name
    return None


def to_diffusers(checkpoint: Mapping[str, T]) -> dict[str, T]:
    """A checkpoint of layout ``original`` under diffusers' names.

    Holds for two residual blocks and the multipliers (1, 2, 4, 4), as released, at any width. A
    name that is not part of that model keeps its name. The values may be anything.
    """
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    converted: dict[str, T] = convert_wan_vae_to_diffusers(dict(checkpoint))
    return converted
