"""Application of a recipe to a model: a format for each linear layer and self-attention."""

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
        linear: formats of all linear layers by name, high precision included.
        attention: formats of all self-attentions by name, such as ``blocks.0.attn1``.
        flops_share: share of a denoising pass's matmul FLOPs with weights, patch embedding
            included, that run in 8 bits, 0 to 1.
        weights_share: share of these weights, and those of ``text_kv``, in 8 bits, 0 to 1.
    """

    linear: Mapping[str, LinearFormat]
    attention: Mapping[str, AttentionFormat]
    flops_share: float
    weights_share: float


def apply_recipe(recipe: Recipe, config: ModelConfig) -> Quantization:
    """Returns the formats that a recipe gives a model's layers.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, a pattern matches no layer, with the nearest one.
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
    """Returns the input rows of a linear layer in a denoising pass, for batch size 1."""
    if "text_embedder" in name or name.endswith(("attn2.to_k", "attn2.to_v")):
        # It runs once a prompt.
        return 0
    if name.startswith("condition_embedder."):
        return config.stream.block
    return config.stream.block * config.frame_tokens
