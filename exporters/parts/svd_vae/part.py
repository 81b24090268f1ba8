"""Part ``svd_vae``: an image encoder, and a temporal decoder that decodes a clip in chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, STRIDE, SvdVaeConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.component import Component

_ACTIVATIONS = 4
"""Activations at full resolution that decoding holds at once."""
_WIDTH = 128
_DECODE_FLOPS = 6.94e12 / (576 * 1024)
_ENCODE_FLOPS = 2.6e12 / (576 * 1024)
"""FLOPs of a pixel at 128 channels; they grow with the square of the channels."""
_PARAMETERS = 97740000
"""At 128 channels."""


@dataclass(frozen=True)
class SvdVaePart(Part):
    """A VAE for images of one size.

    Temporal convolutions and norms see the frames of one chunk alone, so frames depend on it.

    Attributes:
        config: sizes of the network.
        chunk: frames that one call decodes.
        height: of a video frame, in pixels.
        width: of a video frame, in pixels.
    """

    group: ClassVar[str] = "vae"
    config: SvdVaeConfig
    chunk: int
    height: int
    width: int

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        return self.height // STRIDE, self.width // STRIDE

    @property
    def component_names(self) -> tuple[str, ...]:
        """Encoder and decoder."""
        return ("vae_encode", "vae_decode")

    def module(self) -> "nn.Module":
        """Returns an ``SvdVae``."""
        from vidc.exporters.parts.svd_vae.network import SvdVae

        return SvdVae(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``SvdVae``."""
        from vidc.exporters.parts.svd_vae.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which decoded noise fills the range of pixels."""
        from vidc.exporters.parts.svd_vae.random_weights import random_weight

        return random_weight(name, shape, seed)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' autoencoder."""
        sizes, levels = self.config, len(self.config.channels)
        settings = {
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": LATENT_CHANNELS,
            "block_out_channels": sizes.channels,
            "layers_per_block": sizes.layers,
            "down_block_types": ["DownEncoderBlock2D"] * levels,
            "scaling_factor": sizes.scale,
            "force_upcast": ...,
            "sample_size": ...,
        }
        return {"AutoencoderKLTemporalDecoder": settings}

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Its tensors in a file of the whole pipeline, where the conditioner has the encoder."""
        encoder = "conditioner.embedders.3.encoder."
        return {
            "first_stage_model.decoder.": "decoder.",
            f"{encoder}encoder.": "encoder.",
            f"{encoder}quant_conv.": "quant_conv.",
        }

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Makes linear layers of the original attention's convolutions of one pixel."""
        from vidc.exporters.parts.pixel_linears import as_linears

        return as_linears(tensors)

    @property
    def weights_elements(self) -> int:
        """Parameters, which grow with the square of the channels."""
        return round(_PARAMETERS * self._share)

    @property
    def playing_elements(self) -> int:
        """Elements of activations at full resolution, of a chunk."""
        pixels = self.chunk * self.height * self.width
        return _ACTIVATIONS * pixels * self.config.channels[1]

    @property
    def _share(self) -> float:
        """Square of the channels, of the released ones'."""
        return (self.config.channels[0] / _WIDTH) ** 2

    def decode_flops(self, frames: int) -> float:
        """Decoding these frames, in round numbers."""
        return frames * self.height * self.width * _DECODE_FLOPS * self._share

    def encode_flops(self) -> float:
        """Encoding an image, in round numbers."""
        return self.height * self.width * _ENCODE_FLOPS * self._share
