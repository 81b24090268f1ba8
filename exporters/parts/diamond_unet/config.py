"""Sizes of a DIAMOND world model: its denoiser and its upsampler."""

from collections.abc import Iterator
from dataclasses import dataclass

from vidc.exporters.table import Table

GROUP_SIZE = 32
"""Channels of a group in every group norm."""
HEAD_DIM = 8
"""Channels of an attention head."""
COLORS = 3


@dataclass(frozen=True)
class ResidualSizes:
    """Sizes of one residual block.

    Attributes:
        inputs: channels in.
        outputs: channels out.
        attention: True if attention follows.
        level: number of halvings of height and width.
    """

    inputs: int
    outputs: int
    attention: bool
    level: int


@dataclass(frozen=True)
class UNetConfig(Table):
    """Sizes that denoiser and upsampler share.

    Attributes:
        channels: width of each level, the full resolution first.
        depths: residual blocks on the way down of each level; one more on the way up.
        attention: levels whose blocks have attention; the middle always has.
        cond: width of the conditioning vector.
        past: past frames that the network sees.
        sigma_data: standard deviation of the data in EDM preconditioning.
        sigma_offset: standard deviation of the offset noise in training.
    """

    channels: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    attention: tuple[bool, ...] = ()
    cond: int = 2048
    past: int = 1
    sigma_data: float = 0.5
    sigma_offset: float = 0.1

    def _require(self, table: str) -> None:
        """Refuses sizes of which no network can be made; ``table`` names them."""
        self.require_sizes(table, "channels", "depths", "cond", "past")
        self.require(
            0 < len(self.channels) == len(self.depths) == len(self.attention),
            f"{table} has {len(self.channels)} channels, {len(self.depths)} depths and "
            f"{len(self.attention)} attention flags",
            "give one of each a level, such as channels = [64, 64], depths = [2, 2], "
            "attention = [false, true]",
        )
        for width in self.channels:
            self.require(
                width % groups(width) == 0 and width % heads(width) == 0,
                f"{table}.channels has {width}, which has no whole groups of {GROUP_SIZE} and "
                f"heads of {HEAD_DIM}",
                f"use multiples of {GROUP_SIZE}",
            )
        self.require(
            self.cond % 2 == 0, f"{table}.cond = {self.cond} is odd", "set it to an even number"
        )
        self.require(
            self.sigma_data > 0 and self.sigma_offset >= 0,
            f"{table}.sigma_data = {self.sigma_data}, sigma_offset = {self.sigma_offset}",
            "sigma_data must be above 0 and sigma_offset 0 or more",
        )

    @property
    def down(self) -> tuple[tuple[ResidualSizes, ...], ...]:
        """Blocks of each level on the way down, the full resolution first."""
        before = (self.channels[0], *self.channels)
        return tuple(
            tuple(
                ResidualSizes(before[level] if index == 0 else width, width, attention, level)
                for index in range(depth)
            )
            for level, (width, depth, attention) in enumerate(self._levels)
        )

    @property
    def middle(self) -> tuple[ResidualSizes, ...]:
        """The two blocks between both ways."""
        width = self.channels[-1]
        return (ResidualSizes(width, width, True, len(self.channels) - 1),) * 2

    @property
    def up(self) -> tuple[tuple[ResidualSizes, ...], ...]:
        """Blocks of each level on the way up, the lowest resolution first.

        Each block also takes the output of its counterpart on the way down, and the last one what
        entered the level there.
        """
        before = (self.channels[0], *self.channels)
        levels = [
            (
                *(ResidualSizes(2 * width, width, attention, level) for _ in range(depth)),
                ResidualSizes(before[level] + width, before[level], attention, level),
            )
            for level, (width, depth, attention) in enumerate(self._levels)
        ]
        return tuple(reversed(levels))

    @property
    def _levels(self) -> Iterator[tuple[int, int, bool]]:
        return zip(self.channels, self.depths, self.attention, strict=True)

    @property
    def blocks(self) -> tuple[ResidualSizes, ...]:
        """All residual blocks in the order in which they run."""
        ways = (*self.down, self.middle, *self.up)
        return tuple(block for level in ways for block in level)

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of it."""
        return int(2 ** (len(self.channels) - 1))


@dataclass(frozen=True)
class DenoiserConfig(UNetConfig):
    """Sizes of the denoiser, which makes the next low-resolution frame.

    Attributes:
        actions: inputs of an action; the conditioning embeds one action for each past frame.
        one_hot: True if exactly one input of an action is 1, False if any may be.
        noised_past: True if the network is told how much noise its past frames have.
    """

    past: int = 4
    actions: int = 51
    one_hot: bool = False
    noised_past: bool = True

    def __post_init__(self) -> None:
        self._require("denoiser")
        self.require_sizes("denoiser", "actions")
        self.require(
            self.cond % self.past == 0,
            f"denoiser.cond = {self.cond} is not a multiple of past = {self.past}",
            "each past frame's action takes an equal share of the conditioning vector",
        )


@dataclass(frozen=True)
class UpsamplerConfig(UNetConfig):
    """Sizes of the upsampler, which makes a frame of a low-resolution one.

    Attributes:
        factor: height and width of a frame over those of a low-resolution one; 1 if a model has no
            upsampler. All other sizes are then unused.
    """

    factor: int = 1

    def __post_init__(self) -> None:
        self.require_sizes("upsampler", "factor")
        if self.factor > 1:
            self._require("upsampler")


def groups(channels: int) -> int:
    """Returns the number of groups of a group norm."""
    return max(1, channels // GROUP_SIZE)


def heads(channels: int) -> int:
    """Returns the number of heads of an attention."""
    return max(1, channels // HEAD_DIM)
