"""Tensor names of a quantized linear layer."""

from dataclasses import astuple, dataclass, field


@dataclass(frozen=True)
class LinearTensors:
    """Names of the weights of a quantized linear layer.

    Attributes:
        weight: in 8 bits.
        weight_scale: per output channel.
        input_scale: per tensor; None if the input is not quantized or is ``dynamic``.
        input_factor: multiplies the input before quantization, or None.
        input_mean: is subtracted from the input before that, or None.
        dynamic: True if the input has per-token scales, computed at run time.
    """

    weight: str
    weight_scale: str
    input_scale: str | None = None
    input_factor: str | None = None
    input_mean: str | None = None
    dynamic: bool = field(default=False, kw_only=True)

    @property
    def computes(self) -> bool:
        """True if the input is quantized, too."""
        return self.dynamic or self.input_scale is not None

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are not None."""
        return tuple(name for name in astuple(self) if isinstance(name, str))
