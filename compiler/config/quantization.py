"""Quantization of a build: the recipe of the quantized group, and the precision of the rest.

A family quantizes one weights group, its transformer or UNet. Everything else stays in high
precision: 16 or 32 bits.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vidc.compiler.config.layers import Layer, Setting
from vidc.compiler.config.recipe import (
    HIGH,
    AttentionFormat,
    Recipe,
    load_recipe,
    parse_recipe,
)
from vidc.compiler.config.schema import EIGHT_BITS, RECIPE
from vidc.compiler.config.targets import Target
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError, UsageError


@dataclass(frozen=True)
class QuantizationConfig:
    """Quantization of a build's quantized group.

    Attributes:
        precision: ``fp8`` or ``int8``, the precision that names its engines.
        recipe: formats of its layers.
    """

    precision: str
    recipe: Recipe

    @property
    def calibrated(self) -> bool:
        """True if the recipe uses ranges from a calibration."""
        linear = (rule.format for rule in self.recipe.linear)
        attention = (rule.format for rule in self.recipe.attention)
        return (
            any(f.computes and (f.scale == "static" or f.smooth or f.center) for f in linear)
            or any(rule.format.activations != HIGH for rule in self.recipe.convolution)
            or any(f != AttentionFormat() and (f.scale == "static" or f.center) for f in attention)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, including the recipe's rules."""
        recipe = self.recipe
        return {
            "precision": self.precision,
            "recipe": recipe.name,
            "description": recipe.description,
            **recipe.rules(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "QuantizationConfig":
        """Inverse of ``to_json``.

        Raises:
            UsageError: ``VIDC-RECIPE-FIELD``, ``VIDC-RECIPE-PRECISION``.
        """
        table = dict(value)
        precision, name = str(table.pop("precision", None)), str(table.pop("recipe", None))
        made = cls(precision, parse_recipe(table, name))
        _require_of(made.recipe, Setting(precision, "recorded"))
        return made


def quantization(
    precision: Setting, recipe: Setting | None, target: Target, family: type[Family]
) -> QuantizationConfig | None:
    """Returns the quantization at the requested precision; None for 16 or 32 bits.

    Args:
        precision: requested precision of the quantized group.
        recipe: a name or a path, and its origin; None for the default of the family or target.
        target: target of the engines.
        family: family of the model.

    Raises:
        UsageError: ``VIDC-RECIPE-PRECISION``, the recipe has formats of another precision, or is
            given with 16 or 32 bits; what ``load_recipe`` raises.
        UnavailableError: ``VIDC-RECIPE-NONE``, no recipe is given and there is no default.
    """
    if precision.value not in EIGHT_BITS:
        if recipe is not None:
            raise UsageError(
                "VIDC-RECIPE-PRECISION",
                f"recipe {recipe.value} ({recipe.origin}) quantizes, and the transformer is to be "
                f"{precision.value} ({precision.origin})",
                f"pass --precision {' or '.join(EIGHT_BITS)}, or name no recipe",
            )
        return None
    default = default_recipe(str(precision.value), target, family)
    if recipe is None and default is None:
        raise UnavailableError(
            "VIDC-RECIPE-NONE",
            f"there is no recipe for {family.name} in {precision.value} ({precision.origin}) on "
            f"{target.name}",
            "pass --recipe with a name or a file"
            + (f", or --precision {' or '.join(family.recipes)}" if family.recipes else ""),
        )
    found = load_recipe(str(recipe.value if recipe else default))
    _require_of(found, precision)
    return QuantizationConfig(str(precision.value), found)


def named_recipe(layers: Sequence[Layer], precision: Setting) -> Setting | None:
    """Returns the recipe of the highest layer that names one; None if no layer's recipe applies.

    A recipe does not apply if a higher layer sets a precision of 16 or 32 bits: with
    ``--precision bf16``, a preset with a recipe builds in bf16.

    Args:
        layers: lowest precedence first.
        precision: precision of the quantized group, from one of the layers.
    """
    for layer in layers[::-1]:
        if RECIPE in layer:
            return layer[RECIPE]
        if precision in layer.values() and precision.value not in EIGHT_BITS:
            return None
    return None


def default_recipe(precision: str, target: Target, family: type[Family]) -> str | None:
    """Returns the default recipe at a precision, or None if there is none.

    A family with recipes of its own has layers that the targets' recipes do not name; other
    families use the target's.
    """
    if family.recipes:
        return family.recipes.get(precision)
    recipe: str | None = getattr(target.recipes, precision)
    return recipe


def default_origin(target: Target, family: type[Family]) -> str:
    """Returns the origin of the default recipe, such as ``target h100``."""
    return f"family {family.name}" if family.recipes else f"target {target.name}"


def default_reason(precision: str, target: Target, family: type[Family]) -> str:
    """Returns the reason for the default recipe."""
    if family.recipes:
        return f"it is the recipe of family {family.name}"
    return str(getattr(target.recipes, f"{precision}_reason"))


def precision_of(recipe: Recipe) -> str:
    """Returns the precision that a recipe belongs to: ``fp8`` or ``int8``.

    Raises:
        UsageError: ``VIDC-RECIPE-PRECISION``, no precision allows all of its formats.
    """
    for precision in EIGHT_BITS:
        with suppress(UsageError):
            _require_of(recipe, Setting(precision, "tried"))
            return precision
    raise UsageError(
        "VIDC-RECIPE-PRECISION",
        f"recipe {recipe.name} has layers in formats that no --precision builds together",
        "write its Linears all in one format, and attention in that one, or in INT8 beside FP8",
    )


def high_layers(layers: Sequence[Layer], high: str) -> list[Layer]:
    """Returns the layers without 8-bit precisions, to resolve the precision of the rest.

    ``--precision int8`` only quantizes layers that match a rule of the recipe. All other weights
    keep the preset's precision, or ``high`` if no layer sets one.
    """
    return [{"precision.default": Setting(high, "default")}, *map(_without_8_bits, layers)]


def require_quantized_alone(layers: Sequence[Layer], target: Target, family: type[Family]) -> None:
    """Refuses 8 bits for any group other than the quantized one.

    Raises:
        UnavailableError: ``VIDC-EXPORT-PRECISION``.
    """
    for group in family.groups:
        if group == family.quantized_group:
            continue
        names = (f"precision.{target.name}.{group}", f"precision.{group}")
        said = [layer[n] for layer in layers for n in names if n in layer]
        wrong = next((setting for setting in said if setting.value in EIGHT_BITS), None)
        if wrong is not None:
            raise UnavailableError(
                "VIDC-EXPORT-PRECISION",
                f"there is no {group.replace('_', ' ')} in {wrong.value} ({wrong.origin}): "
                f"recipes are about the {family.quantized_group}",
                f"set precision.{family.quantized_group} alone",
            )


def _without_8_bits(layer: Layer) -> Layer:
    return {
        name: setting
        for name, setting in layer.items()
        if not (name.startswith("precision.") and setting.value in EIGHT_BITS)
    }


def _require_of(recipe: Recipe, precision: Setting) -> None:
    weights = [rule.format.weights for rule in recipe.linear]
    weights += [rule.format.weights for rule in recipe.convolution]
    others = [kind for kind in weights if kind not in (HIGH, precision.value)]
    rings = [kind for rule in recipe.attention for kind in (rule.format.keys, rule.format.values)]
    # INT8 attention has less than half the error of FP8 and takes 7 % longer (H200).
    fitting = EIGHT_BITS if precision.value == "fp8" and recipe.linear else (precision.value,)
    others += [kind for kind in rings if kind not in (HIGH, *fitting)]
    if others:
        raise UsageError(
            "VIDC-RECIPE-PRECISION",
            f"recipe {recipe.name} has layers in {others[0]}, and {precision.value} "
            f"({precision.origin}) was asked for",
            f"pass --precision {others[0]}, or another --recipe",
        )
