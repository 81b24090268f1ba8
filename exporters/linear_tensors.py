"""The tensors of a quantized Linear, by name."""

from dataclasses import astuple, dataclass, field


@dataclass(frozen=True)
class LinearTensors:
    """Names of the weights that a quantized Linear reads.

    Attributes:
        weight: in 8 bits.
        weight_scale: one an output channel.
        input_scale: of one element, or None where the input stays in high precision or is
            ``dynamic``.
        input_factor: what the input is multiplied with before it is quantized, or None.
        input_mean: what is taken off it before that, or None.
        dynamic: whether the input has a scale for each token, which is no weight.
    """

    weight: str
    weight_scale: str
    input_scale: str | None = None
    input_factor: str | None = None
    input_mean: str | None = None
    dynamic: bool = field(default=False, kw_only=True)

    @property
    def computes(self) -> bool:
        """Whether its input is quantized, too."""
        return self.dynamic or self.input_scale is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Those that there are."""
        return tuple(name for name in astuple(self) if isinstance(name, str))
