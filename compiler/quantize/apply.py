"""Application of a recipe to a model: a format for each layer that the recipe can quantize.

These are linear layers, convolutions and attentions over rings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vidc.compiler.config.recipe import (
    HIGH,
    AttentionFormat,
    ConvolutionFormat,
    Format,
    LinearFormat,
    Recipe,
    Rule,
    require_matching,
)
from vidc.compiler.quantize.calibrated_tensors import (
    convolution_sizes,
    linear_sizes,
    shared_inputs,
)
from vidc.exporters.families.family import Family


@dataclass(frozen=True)
class Quantization:
    """Formats of a network's layers.

    Attributes:
        linear: by name, the formats of all linear layers, also of those in high precision, and of
            the convolutions in 8 bits, which are computed as matmuls over patches.
        attention: by name, such as ``blocks.0.attn1``, the formats of all attentions over rings.
        flops_share: 8-bit share, 0 to 1, of the FLOPs of a pass's matmuls with weights; weights
            outside linear layers count as high precision.
        shared: by the name of a linear layer that shares its input with others, the names of all
            layers that read this input, in order.
    """

    linear: Mapping[str, LinearFormat]
    attention: Mapping[str, AttentionFormat]
    flops_share: float
    shared: Mapping[str, tuple[str, ...]]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Returns the formats of the quantized layers as JSON values."""
        linear = {n: f for n, f in self.linear.items() if f != LinearFormat()}
        attention = {n: f for n, f in self.attention.items() if f != AttentionFormat()}
        return {name: asdict(fmt) for name, fmt in (linear | attention).items()}


def apply_recipe(recipe: Recipe, model: Family) -> Quantization:
    """Returns the formats that a recipe gives a model's layers.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, a pattern matches no layer; the message names the
            nearest one.
    """
    sizes, part = linear_sizes(model), model.quantized_part
    names, convolutions = tuple(sizes), convolution_sizes(model)
    linear = _formats(recipe.linear, names, LinearFormat(), f"recipe {recipe.name}, [[linear]]")
    convolved = _formats(
        recipe.convolution,
        tuple(convolutions),
        ConvolutionFormat(),
        f"recipe {recipe.name}, [[convolution]]",
    )
    attention = _formats(
        recipe.attention,
        tuple(part.attentions),
        AttentionFormat(),
        f"recipe {recipe.name}, [[attention]]",
    )
    # Multiply-adds of a pass; the share of FLOPs is the same.
    work = {name: math.prod(size) * part.rows(name) for name, size in sizes.items()}
    in_8_bits = sum(work[name] for name in names if linear[name].computes)
    quantized = {name: fmt.as_linear for name, fmt in convolved.items() if fmt.weights != HIGH}
    shapes = part.shapes() if quantized else {}
    in_8_bits += sum(math.prod(shapes[f"{name}.weight"]) * part.rows(name) for name in quantized)
    other_work = sum(weights * rows for weights, rows in part.other_products)
    share = in_8_bits / (sum(work.values()) + other_work)
    return Quantization(linear | quantized, attention, share, shared_inputs(model))


def _formats(
    rules: Sequence[Rule[Format]], names: Sequence[str], high: Format, where: str
) -> dict[str, Format]:
    """Returns a format for each of ``names``: that of the last rule with a matching pattern.

    Args:
        rules: rules of one kind, in the order of the recipe.
        names: layers of that kind.
        high: format of layers that no rule names.
        where: place of the rules, for errors.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, as raised by ``apply_recipe``.
    """
    formats = dict.fromkeys(names, high)
    for rule in rules:
        for pattern in rule.layers:
            formats |= dict.fromkeys(require_matching(pattern, names, where), rule.format)
    return formats
