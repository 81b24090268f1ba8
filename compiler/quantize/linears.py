"""Quantized linear layers and convolutions: formats, shared inputs, names of their tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vidc.compiler.config.recipe import HIGH, STATIC, LinearFormat
from vidc.compiler.quantize.apply import Quantization


@dataclass(frozen=True)
class LinearSpec:
    """Name and format of a quantized linear layer, and the names of its tensors.

    Attributes:
        name: name of the layer.
        format: its format; weights are 8-bit.
        owner: name of the layer that owns the input's quantizer: the first of the layers that read
            the same tensor in the same format. None if activations stay in high precision.
    """

    name: str
    format: LinearFormat
    owner: str | None

    @property
    def static(self) -> bool:
        """True if its input has a static scale."""
        return self.owner is not None and self.format.scale == STATIC

    @property
    def calibrated(self) -> bool:
        """True if it needs figures of a calibration."""
        return self.static or bool(self.format.smooth) or self.format.center

    @property
    def weight(self) -> str:
        """Name of the weight, ``[out, in]``; of a convolution, ``[out, kh * kw * in]``."""
        return f"{self.name}.weight"

    @property
    def weight_scale(self) -> str:
        """Name of the weight's per-channel scale, float32 ``[out]``."""
        return f"{self.name}.weight_scale"

    @property
    def bias(self) -> str:
        """Name of the bias, ``[out]``, in high precision."""
        return f"{self.name}.bias"

    @property
    def scale(self) -> str:
        """Name of the input's static scale, a float32 scalar."""
        return f"{self.owner}.input_quantizer.scale"

    @property
    def pre_quant_scale(self) -> str:
        """Name of the input's multiplier, the reciprocal of SmoothQuant's factors, ``[in]``."""
        return f"{self.owner}.input_quantizer.pre_quant_scale"

    @property
    def mean(self) -> str:
        """Name of the calibrated mean that is subtracted from the input, float32 ``[in]``."""
        return f"{self.owner}.input_quantizer.mean"


def linears_of(formats: Quantization) -> dict[str, LinearSpec]:
    """Returns the layers with 8-bit weights by name; does not check a backend's support."""
    linear = {name: f for name, f in formats.linear.items() if f.weights != HIGH}
    return {
        name: LinearSpec(name, f, _owner(name, linear, formats.shared.get(name, (name,))))
        for name, f in linear.items()
    }


def by_owner(linears: Iterable[LinearSpec]) -> dict[str, list[LinearSpec]]:
    """Returns the linear layers that share each quantized input, by ``LinearSpec.owner``."""
    found: dict[str, list[LinearSpec]] = {}
    for linear in linears:
        if linear.owner is not None:
            found.setdefault(linear.owner, []).append(linear)
    return found


def _owner(name: str, linear: Mapping[str, LinearFormat], shared: Sequence[str]) -> str | None:
    """Returns the first layer of the same format among those that read the same tensor."""
    if not linear[name].computes:
        return None
    return next(n for n in shared if linear.get(n) == linear[name])
