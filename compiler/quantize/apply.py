"""Application of a recipe to a model: a format for each linear layer and self-attention."""

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
        linear: formats of all linear layers by name, high precision included, and of the
            convolutions in 8 bits, as matmuls over patches.
        attention: formats of all attentions over rings by name, such as ``blocks.0.attn1``.
        flops_share: share of a pass's matmul FLOPs with weights, those outside linear layers
            included, that run in 8 bits, 0 to 1.
        shared: of each linear layer that shares its input, all layers that read it, in order.
    """

    linear: Mapping[str, LinearFormat]
    attention: Mapping[str, AttentionFormat]
    flops_share: float
    shared: Mapping[str, tuple[str, ...]]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Returns the formats of the quantized layers as JSON values."""
        plain = {n: f for n, f in self.linear.items() if f != LinearFormat()}
        attention = {n: f for n, f in self.attention.items() if f != AttentionFormat()}
        return {name: asdict(fmt) for name, fmt in (plain | attention).items()}


def apply_recipe(recipe: Recipe, model: Family) -> Quantization:
    """Returns the formats that a recipe gives a model's layers.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, a pattern matches no layer, with the nearest one.
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
    products = {name: math.prod(size) * part.rows(name) for name, size in sizes.items()}
    computed = sum(products[name] for name in names if linear[name].computes)
    narrow = {name: fmt.as_linear for name, fmt in convolved.items() if fmt.weights != HIGH}
    shapes = part.shapes() if narrow else {}
    computed += sum(math.prod(shapes[f"{name}.weight"]) * part.rows(name) for name in narrow)
    others = sum(weight * rows for weight, rows in part.other_products)
    share = computed / (sum(products.values()) + others)
    return Quantization(linear | narrow, attention, share, shared_inputs(model))


def _formats(
    rules: Sequence[Rule[Format]], names: Sequence[str], high: Format, where: str
) -> dict[str, Format]:
    formats = dict.fromkeys(names, high)
    for rule in rules:
        for pattern in rule.layers:
            formats |= dict.fromkeys(require_matching(pattern, names, where), rule.format)
    return formats
