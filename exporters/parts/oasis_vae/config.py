"""Sizes of Oasis's VAE."""

from dataclasses import dataclass

from vidc.exporters.table import Table

EPS = 1e-6
"""Added to the variance in every layer norm."""


@dataclass(frozen=True)
class OasisVaeConfig(Table):
    """Sizes of Oasis's VAE.

    Attributes:
        dim: width of a token.
        heads: of every attention.
        encoder_layers: blocks of the encoder.
        decoder_layers: blocks of the decoder.
        patch: pixels on a side of a token, which is one latent.
        channels: of a latent.
        mlp: hidden width of a feed-forward over ``dim``.
        scale: factor of the latents that the transformer sees.
    """

    dim: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    patch: int = 20
    channels: int = 16
    mlp: int = 4
    scale: float = 0.07843137255

    def __post_init__(self) -> None:
        self.require_sizes(
            "vae", "dim", "heads", "encoder_layers", "decoder_layers", "patch", "channels", "mlp"
        )
        self.require(
            self.dim % self.heads == 0 and self.head_dim % 16 == 0,
            f"vae.dim = {self.dim} does not split into {self.heads} heads of a multiple of 16",
            "choose dim as a multiple of 16 x heads: a quarter of a head rotates with the row, a "
            "quarter with the column, each in at least two pairs",
        )
        self.require(
            self.scale > 0, f"vae.scale = {self.scale} is not above 0", "use the model's own"
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads
