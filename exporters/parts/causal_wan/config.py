"""Sizes of a causal Wan transformer."""

from dataclasses import dataclass

from vidc.exporters.table import Table


@dataclass(frozen=True)
class TransformerConfig(Table):
    """Sizes of a causal Wan transformer."""

    dim: int
    ffn_dim: int
    heads: int
    layers: int
    freq_dim: int = 256
    text_len: int = 512
    text_dim: int = 4096
    channels: int = 16
    patch: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        self.require_sizes(
            "model",
            *("dim", "ffn_dim", "heads", "layers", "freq_dim", "text_len", "text_dim"),
            *("channels", "patch"),
        )
        self.require(
            self.dim % self.heads == 0 and self.head_dim % 2 == 0 and self.head_dim >= 6,
            f"model.dim = {self.dim} does not split into {self.heads} heads of an even size of at "
            "least 6",
            "choose dim as a multiple of 2 x heads",
        )
        self.require(
            self.freq_dim % 2 == 0, f"model.freq_dim = {self.freq_dim} is odd", "choose an even one"
        )
        self.require(
            len(self.patch) == 3 and self.patch[0] == 1,
            f"model.patch = {list(self.patch)} is not [1, height, width]",
            "causal blocks need patches of one frame",
        )
        self.require(
            0 < self.eps < 1,
            f"model.eps = {self.eps} does not lie between 0 and 1",
            "set it to the model's own, such as 1e-6",
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads
