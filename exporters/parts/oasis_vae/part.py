"""Part ``oasis_vae``: an encoder and a decoder of single images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.oasis_vae.config import OasisVaeConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.component import Component

_ACTIVATIONS = 12
"""Activations of a token's width that a call holds at once."""


@dataclass(frozen=True)
class OasisVaePart(Part):
    """A VAE for images of one size.

    Attributes:
        config: sizes of the network.
        height: of an image, in pixels.
        width: of an image, in pixels.
    """

    group: ClassVar[str] = "vae"
    config: OasisVaeConfig
    height: int
    width: int

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's latents."""
        return self.height // self.config.patch, self.width // self.config.patch

    @property
    def component_names(self) -> tuple[str, ...]:
        """Encoder and decoder."""
        return ("vae_encode", "vae_decode")

    def module(self) -> "nn.Module":
        """Returns an ``OasisVae``."""
        from vidc.exporters.parts.oasis_vae.network import OasisVae

        return OasisVae(self.config, self.grid)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``OasisVae``."""
        from vidc.exporters.parts.oasis_vae.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which decoded noise fills the range of pixels."""
        from vidc.exporters.draw import AFTER_SILU
        from vidc.exporters.parts.spatio_temporal_weights import random_weight

        gain = AFTER_SILU if name.endswith("fc2.weight") else 1.0
        if name == "post_quant_conv.weight":
            gain = self.config.scale  # Latents are divided by it.
        elif name == "predictor.weight":
            gain = 0.4
        return random_weight(name, shape, seed, gain)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.oasis_vae.names import disagreements

        return disagreements(found, self.config)

    @property
    def weights_elements(self) -> int:
        """Elements of the matrices of encoder and decoder."""
        config = self.config
        return (config.encoder_layers + config.decoder_layers) * self._layer_weights

    @property
    def _layer_weights(self) -> int:
        return (4 + 2 * self.config.mlp) * self.config.dim**2

    @property
    def playing_elements(self) -> int:
        """Elements of a call's activations."""
        return _ACTIVATIONS * self._tokens * self.config.dim

    @property
    def _tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    def encode_flops(self) -> int:
        """FLOPs of encoding an image."""
        config = self.config
        ends = config.dim * (3 * config.patch**2 + 2 * config.channels)
        return self._flops(config.encoder_layers, ends)

    def decode_flops(self) -> int:
        """FLOPs of decoding an image."""
        config = self.config
        ends = config.dim * (3 * config.patch**2 + config.channels)
        return self._flops(config.decoder_layers, ends)

    def _flops(self, layers: int, ends: int) -> int:
        """Returns the FLOPs of one transformer; ``ends``: weights of its first and last Linear."""
        linears = 2 * self._tokens * (layers * self._layer_weights + ends)
        return linears + 4 * layers * self._tokens**2 * self.config.dim
