"""Part ``svd_vae``: an image encoder, and a temporal decoder that decodes a clip in chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.parts.svd_vae.image_vae import ImageVae

if TYPE_CHECKING:
    from torch import nn

    from vidc.exporters.component import Component


@dataclass(frozen=True)
class SvdVaePart(ImageVae):
    """A VAE for images of one size.

    Temporal convolutions and norms see the frames of one chunk alone, so frames depend on it.

    Attributes:
        chunk: frames that one call decodes.
    """

    pixel_decode_flops: ClassVar[float] = 6.94e12 / (576 * 1024)
    pixel_encode_flops: ClassVar[float] = 2.6e12 / (576 * 1024)
    parameters: ClassVar[int] = 97740000
    chunk: int

    @property
    def frames(self) -> int:
        """Number of frames of a chunk, which are decoded at once."""
        return self.chunk

    def module(self) -> "nn.Module":
        """Returns an ``SvdVae``."""
        from vidc.exporters.parts.svd_vae.network import SvdVae

        return SvdVae(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``SvdVae``."""
        from vidc.exporters.parts.svd_vae.components import components

        return components(self, network)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' autoencoder."""
        return {"AutoencoderKLTemporalDecoder": self.shared_settings}

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Its tensors in a file of the whole pipeline, where the conditioner has the encoder."""
        encoder = "conditioner.embedders.3.encoder."
        return {
            "first_stage_model.decoder.": "decoder.",
            f"{encoder}encoder.": "encoder.",
            f"{encoder}quant_conv.": "quant_conv.",
        }
