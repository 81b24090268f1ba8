"""Which part of a recipe a form can hold, by layer and by the input that layers share."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vidc.compiler.config.formats import FORMATS, HIGH, STATIC, AttentionFormat, LinearFormat
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.apply import Quantization, apply_recipe
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.exporters.config import ModelConfig
from vidc.plugins.errors import UnavailableError, UsageError

_SHARED = re.compile(r"(.*\.attn\d+)\.to_([qkv])")
"""Queries, keys and values of one attention, as far as they read the same tensor."""
_SELF_ATTENTION = "attn1"
_REMOVE = "remove its [[attention]]: the ring stays as it is"


@dataclass(frozen=True)
class QuantizedLinear:
    """One Linear of a recipe.

    Attributes:
        name: of the layer.
        format: weights in 8 bits, activations perhaps.
        site: the layer whose name the input goes by: Linears that read one tensor in one format
            share its scale, factor and mean, so that it is quantized once. None where activations
            stay high.
    """

    name: str
    format: LinearFormat
    site: str | None

    @property
    def static(self) -> bool:
        """Whether its input has one scale, which is known before."""
        return self.site is not None and self.format.scale == STATIC

    @property
    def calibrated(self) -> bool:
        """Whether its numbers take ranges of a calibration."""
        return self.static or bool(self.format.smooth) or self.format.center


def quantized_linears(
    recipe: Recipe, model: ModelConfig, form: Form = GRAPH
) -> dict[str, QuantizedLinear]:
    """The Linears that a recipe means to have in 8 bits, by name.

    Raises:
        UnavailableError: ``VIDC-RECIPE-LOWERING``, it asks for what the form does not hold.
        UsageError: ``VIDC-RECIPE-LAYER``; ``VIDC-RECIPE-PRECISION``, it has nothing in 8 bits.
    """
    return linears_of(lowered_formats(recipe, model, form))


def lowered_formats(recipe: Recipe, model: ModelConfig, form: Form) -> Quantization:
    """The formats that a recipe gives a model's layers, which a form holds; raises as above."""
    formats = apply_recipe(recipe, model)
    if all(f.weights == HIGH for f in formats.linear.values()) and all(
        f.keys == f.values == HIGH for f in formats.attention.values()
    ):
        raise UsageError(
            "VIDC-RECIPE-PRECISION",
            f"recipe {recipe.name} leaves every layer in high precision",
            "add a rule with weights, keys or values in 8 bits, or build in another precision",
        )
    require_lowered(recipe.name, formats, form)
    return formats


def linears_of(formats: Quantization) -> dict[str, QuantizedLinear]:
    """The Linears with weights in 8 bits by name, whether or not graphs can hold them."""
    linear = {name: f for name, f in formats.linear.items() if f.weights != HIGH}
    return {name: QuantizedLinear(name, f, _site(name, linear)) for name, f in linear.items()}


def sites(linears: Iterable[QuantizedLinear]) -> dict[str, list[QuantizedLinear]]:
    """The Linears of each quantized input."""
    found: dict[str, list[QuantizedLinear]] = {}
    for linear in linears:
        if linear.site is not None:
            found.setdefault(linear.site, []).append(linear)
    return found


def require_lowered(recipe: str, formats: Quantization, form: Form) -> None:
    """Refuses formats that would otherwise be left out without a word.

    Raises:
        UnavailableError: ``VIDC-RECIPE-LOWERING`` with the first layer.
    """
    for name, attention in formats.attention.items():
        if attention.computes:
            _require_computed(recipe, name, attention, form)
        elif attention != AttentionFormat():
            _require_ring(recipe, name, attention, form)
    integer = next((n for n, f in formats.linear.items() if f.activations == "int8"), None)
    if integer is not None and not form.integers:
        raise _unlowered(
            recipe,
            f"the product of {integer} in INT8, which is slower than one in bf16 on a Hopper GPU",
            "leave out its activations: weights alone in INT8 save memory, as in int8-weight-only",
        )
    dynamic = next((n for n, f in formats.linear.items() if f.scale != STATIC), None)
    if dynamic is not None and not form.tokens:
        raise _unlowered(
            recipe,
            f"a scale for each token in {dynamic}, {form.lacks}",
            'write scale = "static", which takes the ranges of a calibration',
        )


def _require_computed(recipe: str, name: str, attention: AttentionFormat, form: Form) -> None:
    what = f"{name} in 8 bits"
    if form.attention:
        kind = attention.keys
        alike = AttentionFormat(kind, kind, kind, STATIC, attention.center)
        if kind in form.attention and attention == alike:
            return
        what += " but for queries, keys and values all in one format with static scales"
    raise _unlowered(recipe, f"{what}, {form.lacks}", _REMOVE)


def _require_ring(recipe: str, name: str, attention: AttentionFormat, form: Form) -> None:
    if attention.keys != attention.values:
        raise _unlowered(
            recipe,
            f"keys of {name} in {attention.keys} beside values in {attention.values}: a ring has "
            "one format",
            'write the same format for both, such as "int8"',
        )
    if attention.scale != STATIC:
        raise _unlowered(
            recipe,
            f"a ring of {name} with a scale for each token, which no engine has",
            'write scale = "static", which takes the ranges of a calibration',
        )
    if attention.keys not in form.rings:
        others = [each for each in FORMATS if each in form.rings]
        instead = f'write keys and values = "{others[0]}"' if others else _REMOVE
        kind = attention.keys.upper()
        raise _unlowered(recipe, f"the ring of {name} in {kind}, {form.ring_lacks}", instead)


def _unlowered(recipe: str, what: str, hint: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-RECIPE-LOWERING",
        f"recipe {recipe} asks for {what}",
        f"{hint}, or pass --recipe with another",
    )


def _site(name: str, linear: Mapping[str, LinearFormat]) -> str | None:
    if not linear[name].computes:
        return None
    parts = _SHARED.fullmatch(name)
    if parts is None:
        return name
    attention, part = parts.groups()
    if part == "q" and not attention.endswith(_SELF_ATTENTION):
        return name  # Its queries come from the video, its keys and values from the prompt.
    together = "qkv" if attention.endswith(_SELF_ATTENTION) else "kv"
    alike = (f"{attention}.to_{each}" for each in together)
    return next(n for n in alike if linear.get(n) == linear[name])
