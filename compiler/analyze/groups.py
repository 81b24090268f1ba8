"""Groups of quantized layers, each of which can stay in high precision by itself."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vidc.compiler.config.formats import HIGH, AttentionFormat, LinearFormat
from vidc.compiler.config.patterns import matching
from vidc.compiler.config.recipe import Format, Recipe, Rule
from vidc.compiler.quantize.apply import Quantization

KINDS = {
    "self-attention qkv": "attn1.to_*",
    "self-attention out": "attn1.to_out.0",
    "cross-attention": "attn2.**",
    "ffn up": "ffn.net.0.proj",
    "ffn down": "ffn.net.2",
}
"""Kinds of linear layers within a block, with their patterns."""
RING = "ring attention"
"""Kind of a self-attention's matmuls and of its ring."""
OTHER = "other"
"""Kind of a linear layer outside the blocks."""
_BLOCK = re.compile(r"blocks\.(\d+)\..*")


@dataclass(frozen=True)
class LayerGroup:
    """Quantized layers of one block and kind.

    Linear layers with the same input are in one group, so that a group's values do not depend on
    other groups.

    Attributes:
        kind: a key of ``KINDS``, ``RING`` or ``OTHER``.
        pattern: pattern of the layers in a recipe.
        layers: names of the layers.
        block: index of the transformer block; None for ``OTHER``.
    """

    kind: str
    pattern: str
    layers: tuple[str, ...]
    block: int | None


def layer_groups(formats: Quantization) -> tuple[LayerGroup, ...]:
    """Returns the groups of all quantized layers, block by block."""
    linear = [name for name, fmt in formats.linear.items() if fmt.weights != HIGH]
    attention = [name for name, fmt in formats.attention.items() if fmt != AttentionFormat()]
    indices = (_BLOCK.fullmatch(name) for name in [*linear, *attention])
    groups = []
    for block in sorted({int(found[1]) for found in indices if found}):
        for kind, suffix in KINDS.items():
            pattern = f"blocks.{block}.{suffix}"
            groups.append(LayerGroup(kind, pattern, tuple(matching(pattern, linear)), block))
        ring = f"blocks.{block}.attn1"
        groups.append(LayerGroup(RING, ring, tuple(matching(ring, attention)), block))
    grouped = {name for group in groups for name in group.layers}
    rest = (name for name in linear if name not in grouped)
    groups += [LayerGroup(OTHER, name, (name,), None) for name in rest]
    return tuple(group for group in groups if group.layers)


def layers_of(groups: Collection[LayerGroup]) -> tuple[str, ...]:
    """Returns all layers of these groups."""
    return tuple(layer for group in groups for layer in group.layers)


def with_high(
    recipe: Recipe, groups: Sequence[LayerGroup], high: Collection[LayerGroup], description: str
) -> Recipe:
    """Returns a recipe that leaves some groups in high precision.

    Args:
        recipe: the recipe to start from.
        groups: all its groups.
        high: the groups to leave in high precision; not all of them.
        description: description of the new recipe.
    """
    ring = [group for group in groups if group.kind == RING]
    linear = [group for group in groups if group.kind != RING]
    return Recipe(
        recipe.name,
        description,
        _with_high(recipe.linear, linear, high, LinearFormat()),
        _with_high(recipe.attention, ring, high, AttentionFormat()),
    )


def _with_high(
    rules: tuple[Rule[Format], ...],
    groups: Sequence[LayerGroup],
    high: Collection[LayerGroup],
    fmt: Format,
) -> tuple[Rule[Format], ...]:
    """Returns the rules with one for the high-precision groups; none if all groups are."""
    chosen = [group for group in groups if group in high]
    if len(chosen) == len(groups):
        return ()
    if not chosen:
        return rules
    # The last rule that matches a layer wins.
    return tuple(chain(rules, [Rule(tuple(_patterns(groups, chosen)), fmt)]))


def _patterns(groups: Sequence[LayerGroup], chosen: Sequence[LayerGroup]) -> Iterator[str]:
    """Yields the patterns of groups: one for a kind that is chosen in all blocks."""
    for kind in dict.fromkeys(group.kind for group in chosen):
        alike = [group for group in chosen if group.kind == kind]
        everywhere = len(alike) == sum(group.kind == kind for group in groups)
        if everywhere and len(alike) > 1 and kind != OTHER:
            yield alike[0].pattern.replace(f"blocks.{alike[0].block}.", "blocks.*.", 1)
        else:
            yield from (group.pattern for group in alike)
