"""Sizes of an Oasis transformer."""

from dataclasses import dataclass

from vidc.exporters.table import Table

GROUP = "oasis"
EPS = 1e-6
"""Added to the variance in every layer norm."""
MAX_FREQ = 256
"""Twice the highest spatial frequency of the rotary embedding, in multiples of pi."""


@dataclass(frozen=True)
class OasisConfig(Table):
    """Sizes of an Oasis transformer.

    Attributes:
        dim: channels of a token.
        heads: attention heads, in spatial and in temporal attention.
        layers: number of blocks; each has a spatial and a temporal half.
        mlp: hidden channels of a feed-forward, as a multiple of ``dim``.
        channels: channels of a latent frame.
        patch: side of the square of latent pixels that is one token.
        actions: number of an action's inputs, such as keys and camera movements.
        analog: indices of the inputs that take values from -1 to 1; the others take 0 or 1.
        freq_dim: channels of a timestep's sinusoidal embedding.
    """

    dim: int
    heads: int
    layers: int
    mlp: int = 4
    channels: int = 16
    patch: int = 2
    actions: int = 25
    analog: tuple[int, ...] = (15, 16)
    freq_dim: int = 256

    def __post_init__(self) -> None:
        self.require_sizes(
            "model", "dim", "heads", "layers", "mlp", "channels", "patch", "actions", "freq_dim"
        )
        self.require(
            self.dim % self.heads == 0 and self.head_dim % 8 == 0,
            f"model.dim = {self.dim} does not split into {self.heads} heads of a multiple of 8",
            "choose dim as a multiple of 8 x heads: half a head rotates with the row, half with "
            "the column, each in at least two pairs",
        )
        self.require(
            self.freq_dim % 2 == 0, f"model.freq_dim = {self.freq_dim} is odd", "choose an even one"
        )
        self.require(
            list(self.analog) == sorted(set(self.analog))
            and all(0 <= each < self.actions for each in self.analog),
            f"model.analog = {list(self.analog)} are not rising indices below actions = "
            f"{self.actions}",
            "list the inputs that take values from -1 to 1, such as [15, 16]",
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads

    @property
    def modulations(self) -> int:
        """Vectors that modulate a pass: six for each half of a block, two for the final layer."""
        return 12 * self.layers + 2
