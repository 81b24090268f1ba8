"""Sizes of a GameNGen UNet."""

from dataclasses import dataclass

from vidc.exporters.table import Table

GROUPS = 32
"""Groups of every GroupNorm."""
MAX_NOISE = 0.7
"""Largest standard deviation of the noise that past latents had in training."""


@dataclass(frozen=True)
class GameNGenConfig(Table):
    """Sizes of the network; the defaults are Stable Diffusion 1.4's.

    Attributes:
        channels: of each resolution; the last one has no attention on its way down.
        heads: attention heads of every transformer.
        layers: residual blocks of a resolution on the way down.
        action_dim: width of an action's embedding.
        past: past frames, and their actions, that the network sees.
        actions: number of actions, of which each frame has one.
        buckets: levels of noise of past latents that the network tells apart.
    """

    channels: tuple[int, ...] = (320, 640, 1280, 1280)
    heads: int = 8
    layers: int = 2
    action_dim: int = 768
    past: int = 9
    actions: int = 18
    buckets: int = 10

    def __post_init__(self) -> None:
        self.require_sizes(
            "model", "channels", "heads", "layers", "action_dim", "past", "actions", "buckets"
        )
        self.require(
            len(self.channels) == 4,
            f"model.channels = {list(self.channels)} are not of four resolutions",
            "give four widths",
        )
        for width in self.channels:
            self.require(
                width % GROUPS == 0 and width % self.heads == 0,
                f"model.channels has {width}, which {GROUPS} groups or {self.heads} heads do not "
                "divide",
                f"use multiples of {GROUPS} and of model.heads",
            )

    @property
    def time_dim(self) -> int:
        """Width of the embedded timestep."""
        return 4 * self.channels[0]

    def bucket(self, noise: float) -> int:
        """Returns the bucket of a noise level of past latents, as in training.

        Args:
            noise: standard deviation, from 0 to ``MAX_NOISE``.
        """
        return min(round(noise * self.buckets / MAX_NOISE), self.buckets - 1)
