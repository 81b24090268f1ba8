"""The tensors of a quantised Linear, by name."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class LinearTensors:
    """Names of the weights that a quantised Linear reads.

    Attributes:
        weight: in 8 bits.
        weight_scale: one an output channel.
        input_scale: of one element, or None where the input stays in high precision.
        input_factor: what the input is multiplied with before it is quantised, or None.
        input_mean: what is taken off it before that, or None.
    """

    weight: str
    weight_scale: str
    input_scale: str | None = None
    input_factor: str | None = None
    input_mean: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(name for name in astuple(self) if name is not None)
