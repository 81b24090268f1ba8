"""Sizes of a Stable Video Diffusion UNet."""

from dataclasses import dataclass

from vidc.exporters.table import Table

_GROUPS = 32
"""Groups of every GroupNorm."""
IDS = 3
"""Numbers that condition a clip besides its image: frame rate, motion, noise of the image."""


@dataclass(frozen=True)
class UnetConfig(Table):
    """Sizes of the network, and the number of frames that its weights were trained for.

    Attributes:
        channels: of each resolution; the last one has no attention on its way down.
        heads: attention heads of each resolution.
        layers: residual blocks of a resolution on the way down.
        image_dim: width of the image's CLIP embedding.
        id_dim: width of the sinusoid of each conditioning number.
        num_frames: frames of a clip in training; no weight depends on it.
    """

    channels: tuple[int, ...] = (320, 640, 1280, 1280)
    heads: tuple[int, ...] = (5, 10, 20, 20)
    layers: int = 2
    image_dim: int = 1024
    id_dim: int = 256
    num_frames: int = 14

    def __post_init__(self) -> None:
        self.require_sizes(
            "model", "channels", "heads", "layers", "image_dim", "id_dim", "num_frames"
        )
        self.require(
            len(self.channels) == len(self.heads) == 4,
            f"model.channels = {list(self.channels)} and model.heads = {list(self.heads)} are "
            "not sizes of four resolutions",
            "give four of each",
        )
        for channels, heads in zip(self.channels, self.heads, strict=True):
            self.require(
                channels % _GROUPS == 0 and channels % heads == 0,
                f"model.channels has {channels}, which {_GROUPS} groups or {heads} heads do not "
                "divide",
                f"use multiples of {_GROUPS} and of the heads",
            )
        self.require(
            self.id_dim % 2 == 0,
            f"model.id_dim = {self.id_dim} is odd",
            "use an even number: half of it are cosines",
        )

    @property
    def time_dim(self) -> int:
        """Width of the embedded timestep."""
        return 4 * self.channels[0]
