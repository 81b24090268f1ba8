"""Sizes of a Stable Video Diffusion VAE."""

from dataclasses import dataclass

from vidc.exporters.table import Table

STRIDE = 8
"""Pixels to a latent, in height and in width."""
LATENT_CHANNELS = 4
_GROUPS = 32
"""Groups of every GroupNorm."""


@dataclass(frozen=True)
class SvdVaeConfig(Table):
    """Sizes of the network.

    Attributes:
        channels: of each resolution, from pixels to latents.
        layers: residual blocks of a resolution in the encoder; the decoder has one more.
        scale: factor of the latents that the UNet sees: the inverse of their standard deviation.
    """

    channels: tuple[int, ...] = (128, 256, 512, 512)
    layers: int = 2
    scale: float = 0.18215

    def __post_init__(self) -> None:
        self.require_sizes("vae", "channels", "layers")
        self.require(
            len(self.channels) == 4 and all(c % _GROUPS == 0 for c in self.channels),
            f"vae.channels = {list(self.channels)} are not four multiples of {_GROUPS}",
            "use those of the VAE's config, block_out_channels",
        )
        self.require(
            self.scale > 0,
            f"vae.scale = {self.scale} is no scale",
            "use that of the VAE's config, scaling_factor",
        )
