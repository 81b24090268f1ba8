"""What a recipe makes of a model: a format for each Linear and each self-attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vidc.compiler.config.formats import HIGH, AttentionFormat, LinearFormat
from vidc.compiler.config.patterns import require_matching
from vidc.compiler.config.recipe import Format, Recipe, Rule
from vidc.compiler.quantize.calibrated_tensors import attention_names, linear_sizes
from vidc.exporters.config import ModelConfig


@dataclass(frozen=True)
class Quantization:
    """Formats of a transformer's layers.

    Attributes:
        linear: of every Linear by name, those that stay high too.
        attention: of every self-attention by name, ``blocks.0.attn1`` and so on.
        flops_share: how much of the matrix products with weights in a denoising pass, the patch
            embedding's among them, is computed in 8 bits: between 0 and 1.
        weights_share: how much of these weights, and of those of ``text_kv``, is kept in 8 bits.
    """

    linear: Mapping[str, LinearFormat]
    attention: Mapping[str, AttentionFormat]
    flops_share: float
    weights_share: float


def apply_recipe(recipe: Recipe, config: ModelConfig) -> Quantization:
    """The formats that a recipe gives a model's layers.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, a pattern means no layer, with the nearest one.
    """
    sizes = linear_sizes(config)
    names = tuple(sizes)
    linear = _formats(recipe.linear, names, LinearFormat(), f"recipe {recipe.name}, [[linear]]")
    attention = _formats(
        recipe.attention,
        attention_names(config.transformer),
        AttentionFormat(),
        f"recipe {recipe.name}, [[attention]]",
    )
    weights = {name: math.prod(size) for name, size in sizes.items()}
    patch = (
        config.transformer.dim * config.transformer.channels * math.prod(config.transformer.patch)
    )
    products = {name: weight * denoising_rows(name, config) for name, weight in weights.items()}
    computed = sum(products[name] for name in names if linear[name].computes)
    kept = sum(weights[name] for name in names if linear[name].weights != HIGH)
    tokens = config.stream.block * config.frame_tokens
    return Quantization(
        linear,
        attention,
        computed / (sum(products.values()) + patch * tokens),
        kept / (sum(weights.values()) + patch),
    )


def _formats(
    rules: Sequence[Rule[Format]], names: Sequence[str], high: Format, where: str
) -> dict[str, Format]:
    formats = dict.fromkeys(names, high)
    for rule in rules:
        for pattern in rule.layers:
            formats |= dict.fromkeys(require_matching(pattern, names, where), rule.format)
    return formats


def denoising_rows(name: str, config: ModelConfig) -> int:
    """How many rows a denoising pass multiplies with a Linear's weight, of one video."""
    if "text_embedder" in name or name.endswith(("attn2.to_k", "attn2.to_v")):
        # Once a prompt, not once a pass.
        return 0
    if name.startswith("condition_embedder."):
        return config.stream.block
    return config.stream.block * config.frame_tokens
