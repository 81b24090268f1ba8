"""Part ``sd_vae``: encoder and decoder of single frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.parts.svd_vae.image_vae import ImageVae

if TYPE_CHECKING:
    from torch import nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component


@dataclass(frozen=True)
class SdVaePart(ImageVae):
    """A VAE for frames of one size."""

    pixel_decode_flops: ClassVar[float] = 0.7296e12 / (240 * 320)
    pixel_encode_flops: ClassVar[float] = 0.32e12 / (240 * 320)
    parameters: ClassVar[int] = 83653863

    @property
    def frames(self) -> int:
        """Frames that one call decodes: one."""
        return 1

    def module(self) -> "nn.Module":
        """Returns an ``SdVae``."""
        from vidc.exporters.parts.sd_vae.network import SdVae

        return SdVae(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``SdVae``."""
        from vidc.exporters.parts.sd_vae.components import components

        return components(self, network)

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads the VAE; ``trained_vae_decoder.pth`` beside its folder replaces its decoder."""
        from vidc.exporters.parts.sd_vae.checkpoint import decoder_file, with_decoder

        loaded, decoder = super().load(checkpoint, loras, layouts, ema), decoder_file(checkpoint)
        return with_decoder(self, loaded, decoder) if decoder.exists() else loaded

    def files_beside(self, checkpoint: Path) -> tuple[Path, ...]:
        """Returns the file of a tuned decoder, in the folder that holds ``vae/``."""
        from vidc.exporters.parts.sd_vae.checkpoint import decoder_file

        return (decoder_file(checkpoint),)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' autoencoder."""
        settings = {
            "up_block_types": ["UpDecoderBlock2D"] * len(self.config.channels),
            "act_fn": "silu",
            "norm_num_groups": 32,
            "use_quant_conv": True,
            "use_post_quant_conv": True,
            "mid_block_add_attention": True,
        }
        return {"AutoencoderKL": {**self.shared_settings, **settings}}

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.sd_vae.names import disagreements

        return disagreements(found, expected)
