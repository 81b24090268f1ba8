"""Formats of quantized layers in a recipe's rules."""

from dataclasses import dataclass

from vidc.exporters.table import Table

HIGH = "high"
FORMATS = (HIGH, "fp8", "int8")
"""``high`` is the precision of the rest of the model, ``fp8`` E4M3, ``int8`` symmetric."""
STATIC, DYNAMIC = "static", "dynamic"
SCALES = (STATIC, DYNAMIC)


@dataclass(frozen=True)
class LinearFormat(Table):
    """Format of a linear layer.

    Attributes:
        weights: format of weights, with per-channel scales.
        activations: ``high``, or the weights' format; then the matmul is quantized.
        scale: of activations: ``static`` is one number, from the calibration; ``dynamic`` is
            computed for each token.
        smooth: SmoothQuant's alpha: which share of the activations' outliers moves into the
            weights, channel by channel; 0 is none.
        center: whether the activations' static mean, from the calibration, is taken off before they
            are quantized; its product is in the bias.
    """

    weights: str = HIGH
    activations: str = HIGH
    scale: str = STATIC
    smooth: float = 0.0
    center: bool = False

    @property
    def problem(self) -> str | None:
        """Returns what is inconsistent, or None."""
        if self.activations not in (HIGH, self.weights):
            return f"activations in {self.activations} need weights in {self.activations} too"
        if self.activations == HIGH and (self.smooth or self.center or self.scale != STATIC):
            return "scale, smooth and center are about activations, which stay high"
        if not 0 <= self.smooth <= 1:
            return f"smooth = {self.smooth} does not lie between 0 and 1"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Returns the allowed values of its fields."""
        return {"weights": FORMATS, "activations": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """True if the matmul is computed in 8 bits."""
        return self.activations != HIGH


@dataclass(frozen=True)
class AttentionFormat(Table):
    """Format of a self-attention: dtype of its ring and of its matmuls.

    Attributes:
        queries: ``high``, or the keys' format; then both matmuls are quantized.
        keys: format of keys in the ring.
        values: format of values in the ring.
        scale: ``static`` is one number a head, from the calibration; ``dynamic`` is computed for
            each token and head, and written beside the ring.
        center: whether the keys' static mean, from the calibration, is taken off before they are
            quantized: softmax does not see it.
    """

    queries: str = HIGH
    keys: str = HIGH
    values: str = HIGH
    scale: str = STATIC
    center: bool = False

    @property
    def problem(self) -> str | None:
        """Returns what is inconsistent, or None."""
        if self.queries not in (HIGH, self.keys):
            return f"queries in {self.queries} need keys in {self.queries} too"
        if self.queries != HIGH and self.values == HIGH:
            return f"queries in {self.queries} need values in 8 bits too"
        if self.keys == HIGH and self.center:
            return "center is about keys in 8 bits, and these stay high"
        if self.keys == self.values == HIGH and self.scale != STATIC:
            return "scale is about keys and values in 8 bits, and these stay high"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """Returns the allowed values of its fields."""
        return {"queries": FORMATS, "keys": FORMATS, "values": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """True if both matmuls are computed in 8 bits."""
        return self.queries != HIGH
