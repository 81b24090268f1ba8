"""Sizes of a TAEHV."""

from dataclasses import dataclass

from vidc.exporters.table import Table

GROUP = "taehv"
"""Name of a TAEHV's weights."""
STAGES = 3
"""Stages of the encoder and of the decoder; each changes height and width by 2."""
COLORS = 3


@dataclass(frozen=True)
class TaehvConfig(Table):
    """Sizes of a TAEHV; the defaults are those of ``taew2_1``.

    Attributes:
        latent_channels: channels of a latent; 48 in ``taew2_2``.
        patch: side of the squares of pixels that the network takes as channels; 2 in ``taew2_2``.
        widths: channels of the decoder's three stages, and after the last of them.
        encoder_width: channels of the encoder.
    """

    latent_channels: int = 16
    patch: int = 1
    widths: tuple[int, ...] = (256, 128, 64, 64)
    encoder_width: int = 64

    def __post_init__(self) -> None:
        self.require_sizes("taehv", "latent_channels", "patch", "widths", "encoder_width")
        self.require(
            len(self.widths) == STAGES + 1,
            f"taehv.widths = {list(self.widths)} are not {STAGES + 1} numbers",
            "set it to the channels of the three stages and of the last layers, such as "
            "[256, 128, 64, 64]",
        )

    @property
    def spatial_stride(self) -> int:
        """Pixels to a latent, in height and in width."""
        return self.patch << STAGES

    @property
    def pixel_channels(self) -> int:
        """Channels of a frame inside the network."""
        return COLORS * self.patch**2
