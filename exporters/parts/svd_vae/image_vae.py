"""Base class of autoencoders that encode one image, and decode some frames in a call."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.svd_vae.config import LATENT_CHANNELS, STRIDE, SvdVaeConfig

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor

_ACTIVATIONS = 4
"""Activations at full resolution that decoding holds at once."""
_WIDTH = 128
"""Channels at full resolution of the released models."""


@dataclass(frozen=True)
class ImageVae(Part):
    """A VAE for images of one size: components ``vae_encode`` and ``vae_decode``.

    Attributes:
        config: sizes of the network.
        height: of a video frame, in pixels.
        width: of a video frame, in pixels.
        pixel_decode_flops: FLOPs of decoding a pixel, at the released models' channels.
        pixel_encode_flops: the same for encoding.
        parameters: parameters of the network, at the same channels. All three numbers grow with
            the square of the channels.
    """

    group: ClassVar[str] = "vae"
    pixel_decode_flops: ClassVar[float]
    pixel_encode_flops: ClassVar[float]
    parameters: ClassVar[int]
    config: SvdVaeConfig
    height: int
    width: int

    @property
    @abstractmethod
    def frames(self) -> int:
        """Frames that one call decodes."""

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        return self.height // STRIDE, self.width // STRIDE

    @property
    def component_names(self) -> tuple[str, ...]:
        """Encoder and decoder."""
        return ("vae_encode", "vae_decode")

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which decoded noise fills the range of pixels."""
        from vidc.exporters.parts.svd_vae.random_weights import random_weight

        return random_weight(name, shape, seed)

    @property
    def shared_settings(self) -> Mapping[str, Any]:
        """Settings in the config of each of diffusers' autoencoders."""
        sizes = self.config
        return {
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": LATENT_CHANNELS,
            "block_out_channels": sizes.channels,
            "layers_per_block": sizes.layers,
            "down_block_types": ["DownEncoderBlock2D"] * len(sizes.channels),
            "scaling_factor": sizes.scale,
            "force_upcast": ...,
            "sample_size": ...,
        }

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Turns the 1 x 1 convolutions of attention into linear layers."""
        from vidc.exporters.parts.pixel_linears import as_linears

        return as_linears(tensors)

    @property
    def weights_elements(self) -> int:
        """Parameters of the network."""
        return round(self.parameters * self._share)

    @property
    def playing_elements(self) -> int:
        """Elements of activations at full resolution while a call decodes."""
        pixels = self.frames * self.height * self.width
        return _ACTIVATIONS * pixels * self.config.channels[1]

    @property
    def decode_flops(self) -> float:
        """FLOPs of decoding one frame."""
        return self.height * self.width * self.pixel_decode_flops * self._share

    @property
    def encode_flops(self) -> float:
        """FLOPs of encoding an image."""
        return self.height * self.width * self.pixel_encode_flops * self._share

    @property
    def _share(self) -> float:
        """Square of the ratio of this model's channels to those of the released models."""
        return (self.config.channels[0] / _WIDTH) ** 2
