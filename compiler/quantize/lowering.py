"""Formats of a recipe that a backend compiles, and the names of its quantized linear layers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vidc.compiler.config.recipe import FORMATS, HIGH, STATIC, AttentionFormat, LinearFormat, Recipe
from vidc.compiler.quantize.apply import Quantization, apply_recipe
from vidc.compiler.quantize.calibrated_tensors import linear_sizes
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError, UsageError

_REMOVE = "remove its [[attention]], which leaves the ring in high precision"


@dataclass(frozen=True)
class LinearSpec:
    """Name and format of a quantized linear layer, and the names of its tensors.

    Attributes:
        name: name of the layer.
        format: its format; weights are 8-bit.
        site: name of the layer that owns the input's quantizer: the first of the layers that read
            the same tensor in the same format. None if activations stay in high precision.
    """

    name: str
    format: LinearFormat
    site: str | None

    @property
    def static(self) -> bool:
        """True if its input has a static scale."""
        return self.site is not None and self.format.scale == STATIC

    @property
    def calibrated(self) -> bool:
        """True if it needs figures of a calibration."""
        return self.static or bool(self.format.smooth) or self.format.center

    @property
    def weight(self) -> str:
        """Name of the weight, ``[out, in]``."""
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
        return f"{self.site}.input_quantizer.scale"

    @property
    def pre_quant_scale(self) -> str:
        """Name of the input's multiplier, the reciprocal of SmoothQuant's factors, ``[in]``."""
        return f"{self.site}.input_quantizer.pre_quant_scale"

    @property
    def mean(self) -> str:
        """Name of the calibrated mean that is subtracted from the input, float32 ``[in]``."""
        return f"{self.site}.input_quantizer.mean"


def lowered_formats(recipe: Recipe, model: Family, support: QuantizationSupport) -> Quantization:
    """Returns the formats that a recipe gives a model's layers, if a backend supports them all.

    Raises:
        UnavailableError: ``VIDC-RECIPE-LOWERING``, the backend does not support a format.
        UsageError: ``VIDC-RECIPE-LAYER``, a pattern matches no layer; ``VIDC-RECIPE-PRECISION``,
            the recipe quantizes nothing.
    """
    formats = apply_recipe(recipe, model)
    if all(f.weights == HIGH for f in formats.linear.values()) and all(
        f.keys == f.values == HIGH for f in formats.attention.values()
    ):
        raise UsageError(
            "VIDC-RECIPE-PRECISION",
            f"recipe {recipe.name} leaves every layer in high precision",
            "add a rule with weights, keys or values in 8 bits, or build in another precision",
        )
    require_lowered(recipe.name, formats, support)
    sizes = linear_sizes(model)
    for name, fmt in formats.linear.items():
        if fmt.computes and any(size % support.multiple for size in sizes[name]):
            raise _unlowered(
                recipe.name,
                f"a quantized matmul of {name}, whose sizes {sizes[name][0]} and {sizes[name][1]} "
                f"are no multiples of {support.multiple}",
                "leave the layer, or its activations, out of the recipe",
            )
    return formats


def linears_of(formats: Quantization) -> dict[str, LinearSpec]:
    """Returns the linear layers with 8-bit weights by name; does not check a backend's support."""
    linear = {name: f for name, f in formats.linear.items() if f.weights != HIGH}
    return {
        name: LinearSpec(name, f, _site(name, linear, formats.shared.get(name, (name,))))
        for name, f in linear.items()
    }


def sites(linears: Iterable[LinearSpec]) -> dict[str, list[LinearSpec]]:
    """Returns the linear layers that share each quantized input, by ``LinearSpec.site``."""
    found: dict[str, list[LinearSpec]] = {}
    for linear in linears:
        if linear.site is not None:
            found.setdefault(linear.site, []).append(linear)
    return found


def require_lowered(recipe: str, formats: Quantization, support: QuantizationSupport) -> None:
    """Rejects formats that a backend does not support.

    Raises:
        UnavailableError: ``VIDC-RECIPE-LOWERING``, names the first such layer.
    """
    for name, attention in formats.attention.items():
        if attention.computes:
            _require_computed(recipe, name, attention, support)
        elif attention != AttentionFormat():
            _require_ring(recipe, name, attention, support)
    integer = next((n for n, f in formats.linear.items() if f.activations == "int8"), None)
    if integer is not None and not support.int8_matmul:
        raise _unlowered(
            recipe,
            f"the matmul of {integer} in INT8, which is slower than one in bf16 on a Hopper GPU",
            "leave out its activations: INT8 weights save memory, as in int8-weight-only",
        )
    dynamic = next((n for n, f in formats.linear.items() if f.scale != STATIC), None)
    if dynamic is not None and not support.per_token:
        raise _unlowered(
            recipe,
            f"per-token scales in {dynamic}, {support.unsupported}",
            'write scale = "static", which uses the ranges of a calibration',
        )


def _require_computed(
    recipe: str, name: str, attention: AttentionFormat, support: QuantizationSupport
) -> None:
    what = f"{name} in 8 bits"
    if support.attention_formats:
        kind = attention.keys
        alike = AttentionFormat(kind, kind, kind, STATIC, attention.center)
        if kind in support.attention_formats and attention == alike:
            return
        what += " other than queries, keys and values in one format with static scales"
    raise _unlowered(recipe, f"{what}, {support.unsupported}", _REMOVE)


def _require_ring(
    recipe: str, name: str, attention: AttentionFormat, support: QuantizationSupport
) -> None:
    if attention.keys != attention.values:
        raise _unlowered(
            recipe,
            f"keys of {name} in {attention.keys} and values in {attention.values}: a ring has one "
            "format",
            'write the same format for both, such as "int8"',
        )
    if attention.scale != STATIC:
        raise _unlowered(
            recipe,
            f"a ring of {name} with per-token scales, which no engine supports",
            'write scale = "static", which uses the ranges of a calibration',
        )
    if attention.keys not in support.ring_formats:
        others = [each for each in FORMATS if each in support.ring_formats]
        instead = f'write keys and values = "{others[0]}"' if others else _REMOVE
        kind = attention.keys.upper()
        raise _unlowered(
            recipe, f"the ring of {name} in {kind}, {support.unsupported_rings}", instead
        )


def _unlowered(recipe: str, what: str, hint: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-RECIPE-LOWERING",
        f"recipe {recipe} asks for {what}",
        f"{hint}, or pass --recipe with another",
    )


def _site(name: str, linear: Mapping[str, LinearFormat], shared: Sequence[str]) -> str | None:
    """Returns the first layer of the same format among those that read the same tensor."""
    if not linear[name].computes:
        return None
    return next(n for n in shared if linear.get(n) == linear[name])
