"""In what format a layer computes, as a rule of a recipe says it."""

from dataclasses import dataclass

from vidc.exporters.table import Table

HIGH = "high"
FORMATS = (HIGH, "fp8", "int8")
"""``high`` is the precision of the rest of the model, ``fp8`` E4M3, ``int8`` symmetric."""
STATIC, DYNAMIC = "static", "dynamic"
SCALES = (STATIC, DYNAMIC)


@dataclass(frozen=True)
class LinearFormat(Table):
    """Of a Linear.

    Attributes:
        weights: with one scale an output channel.
        activations: ``high``, or the weights' format, in which the product is then computed.
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
        """What is wrong with it, or nothing."""
        if self.activations not in (HIGH, self.weights):
            return f"activations in {self.activations} need weights in {self.activations} too"
        if self.activations == HIGH and (self.smooth or self.center or self.scale != STATIC):
            return "scale, smooth and center are about activations, which stay high"
        if not 0 <= self.smooth <= 1:
            return f"smooth = {self.smooth} does not lie between 0 and 1"
        return None

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """What its fields may be."""
        return {"weights": FORMATS, "activations": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """Whether its product is computed in 8 bits."""
        return self.activations != HIGH


@dataclass(frozen=True)
class AttentionFormat(Table):
    """Of a self-attention: what its ring holds and what its products are computed in.

    Attributes:
        queries: ``high``, or the keys' format: then both products are computed in 8 bits.
        keys: as the ring holds them.
        values: as the ring holds them.
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
        """What is wrong with it, or nothing."""
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
        """What its fields may be."""
        return {"queries": FORMATS, "keys": FORMATS, "values": FORMATS, "scale": SCALES}

    @property
    def computes(self) -> bool:
        """Whether its products are computed in 8 bits."""
        return self.queries != HIGH
