"""Formats that a recipe gives a model's layers, refused if a backend does not support them."""

from collections.abc import Sequence

from vidc.compiler.config.recipe import FORMATS, HIGH, STATIC, AttentionFormat, Recipe
from vidc.compiler.quantize.apply import Quantization, apply_recipe
from vidc.compiler.quantize.arithmetic import DTYPES
from vidc.compiler.quantize.calibrated_tensors import linear_sizes
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError, UsageError

_REMOVE = "remove its [[attention]], which leaves the ring in high precision"


def supported_formats(recipe: Recipe, model: Family, support: QuantizationSupport) -> Quantization:
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
    sizes = linear_sizes(model)
    _require_convolutions(recipe.name, [n for n in formats.linear if n not in sizes], support)
    require_supported(recipe.name, formats, support)
    _require_kernels(recipe.name, formats, model, support)
    for name, fmt in formats.linear.items():
        if name in sizes and fmt.computes and any(size % support.multiple for size in sizes[name]):
            raise _unsupported(
                recipe.name,
                f"a quantized matmul of {name}, whose sizes {sizes[name][0]} and {sizes[name][1]} "
                f"are no multiples of {support.multiple}",
                "leave the layer, or its activations, out of the recipe",
            )
    return formats


def require_supported(recipe: str, formats: Quantization, support: QuantizationSupport) -> None:
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
        raise _unsupported(
            recipe,
            f"the matmul of {integer} in INT8, which is slower than one in bf16 on a Hopper GPU",
            "leave out its activations: INT8 weights save memory, as in int8-weight-only",
        )
    dynamic = next((n for n, f in formats.linear.items() if f.scale != STATIC), None)
    if dynamic is not None and not support.per_token:
        raise _unsupported(
            recipe,
            f"per-token scales in {dynamic}, {support.unsupported}",
            'write scale = "static", which uses the ranges of a calibration',
        )


def _require_convolutions(
    recipe: str, convolutions: Sequence[str], support: QuantizationSupport
) -> None:
    if convolutions and not support.convolutions:
        raise _unsupported(
            recipe,
            f"the convolution {convolutions[0]} in INT8, {support.unsupported}",
            "remove its [[convolution]], which leaves them in high precision, or pass --backend "
            "tensorrt",
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
    raise _unsupported(recipe, f"{what}, {support.unsupported}", _REMOVE)


def _require_kernels(
    recipe: str, formats: Quantization, model: Family, support: QuantizationSupport
) -> None:
    """Rejects 8-bit rings whose sizes the backend's kernels do not support."""
    from vidc.compiler.quantize.ring_kernels import ring_refusal  # Imports the operators.

    for name, ring in model.quantized_part.attentions.items():
        fmt = formats.attention[name]
        kernels = support.attention_kernels if fmt.computes else support.ring_kernels
        if fmt == AttentionFormat() or not kernels:
            continue
        refused = ring_refusal(ring, DTYPES[fmt.keys], fmt.computes)
        if refused is not None:
            raise _unsupported(
                recipe,
                f"{name} in 8 bits, and no kernel supports its ring {ring.keys}: {refused}",
                _REMOVE,
            )


def _require_ring(
    recipe: str, name: str, attention: AttentionFormat, support: QuantizationSupport
) -> None:
    if attention.keys != attention.values:
        raise _unsupported(
            recipe,
            f"keys of {name} in {attention.keys} and values in {attention.values}: a ring has one "
            "format",
            'write the same format for both, such as "int8"',
        )
    if attention.scale != STATIC:
        raise _unsupported(
            recipe,
            f"a ring of {name} with per-token scales, which no engine supports",
            'write scale = "static", which uses the ranges of a calibration',
        )
    if attention.keys not in support.ring_formats:
        others = [each for each in FORMATS if each in support.ring_formats]
        instead = f'write keys and values = "{others[0]}"' if others else _REMOVE
        kind = attention.keys.upper()
        raise _unsupported(
            recipe, f"the ring of {name} in {kind}, {support.unsupported_rings}", instead
        )


def _unsupported(recipe: str, what: str, hint: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-RECIPE-LOWERING",
        f"recipe {recipe} asks for {what}",
        f"{hint}, or pass --recipe with another",
    )
