"""Part ``sd_vae``: encoder and decoder of single frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, STRIDE, SvdVaeConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component

_ACTIVATIONS = 4
"""Activations at full resolution that decoding holds at once."""
_WIDTH = 128
_DECODE_FLOPS = 0.7296e12 / (240 * 320)
_ENCODE_FLOPS = 0.32e12 / (240 * 320)
"""FLOPs of a pixel at 128 channels; they grow with the square of the channels."""
_PARAMETERS = 83653863
"""At 128 channels."""


@dataclass(frozen=True)
class SdVaePart(Part):
    """A VAE for frames of one size.

    Attributes:
        config: sizes of the network.
        height: of a video frame, in pixels.
        width: of a video frame, in pixels.
    """

    group: ClassVar[str] = "vae"
    config: SvdVaeConfig
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
        """Returns an ``SdVae``."""
        from vidc.exporters.parts.sd_vae.network import SdVae

        return SdVae(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``SdVae``."""
        from vidc.exporters.parts.sd_vae.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which decoded noise fills the range of pixels."""
        from vidc.exporters.parts.svd_vae.random_weights import random_weight

        return random_weight(name, shape, seed)

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
        sizes, levels = self.config, len(self.config.channels)
        settings = {
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": LATENT_CHANNELS,
            "block_out_channels": sizes.channels,
            "layers_per_block": sizes.layers,
            "down_block_types": ["DownEncoderBlock2D"] * levels,
            "up_block_types": ["UpDecoderBlock2D"] * levels,
            "act_fn": "silu",
            "norm_num_groups": 32,
            "scaling_factor": sizes.scale,
            "use_quant_conv": True,
            "use_post_quant_conv": True,
            "mid_block_add_attention": True,
            "force_upcast": ...,
            "sample_size": ...,
        }
        return {"AutoencoderKL": settings}

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Makes linear layers of convolutions of one pixel in attention."""
        from vidc.exporters.parts.pixel_linears import as_linears

        return as_linears(tensors)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.sd_vae.names import disagreements

        return disagreements(found, expected)

    @property
    def weights_elements(self) -> int:
        """Parameters, which grow with the square of the channels."""
        return round(_PARAMETERS * self._share)

    @property
    def playing_elements(self) -> int:
        """Elements of activations at full resolution."""
        return _ACTIVATIONS * self.height * self.width * self.config.channels[1]

    @property
    def _share(self) -> float:
        """Square of the channels, of the released ones'."""
        return (self.config.channels[0] / _WIDTH) ** 2

    @property
    def decode_flops(self) -> float:
        """FLOPs of decoding a frame."""
        return self.height * self.width * _DECODE_FLOPS * self._share

    @property
    def encode_flops(self) -> float:
        """FLOPs of encoding a frame."""
        return self.height * self.width * _ENCODE_FLOPS * self._share
