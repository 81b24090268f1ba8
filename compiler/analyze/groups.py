"""Groups of quantized layers, each of which can stay in high precision by itself."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from vidc.compiler.config.recipe import (
    HIGH,
    AttentionFormat,
    Format,
    LinearFormat,
    Recipe,
    Rule,
    matching,
)
from vidc.compiler.quantize.apply import Quantization
from vidc.exporters.families.family import Family

RING = "ring attention"
"""Kind of an attention over a ring, and of that ring's keys and values."""
OTHER = "other"
"""Kind of a linear layer outside the blocks."""


@dataclass(frozen=True)
class LayerGroup:
    """Quantized layers of one block and kind.

    Linear layers with the same input are in one group, so that a group's values do not depend on
    other groups.

    Attributes:
        kind: name of one of the family's kinds, ``RING`` or ``OTHER``.
        pattern: pattern of the layers in a recipe.
        layers: names of the layers.
        block: index of the block; None for ``OTHER``.
        everywhere: pattern of the layers of this kind in all blocks; empty for ``OTHER``.
    """

    kind: str
    pattern: str
    layers: tuple[str, ...]
    block: int | None
    everywhere: str = ""


def layer_groups(model: Family, formats: Quantization) -> tuple[LayerGroup, ...]:
    """Returns the groups of all quantized layers of a model, block by block."""
    linear = [name for name, fmt in formats.linear.items() if fmt.weights != HIGH]
    attention = [name for name, fmt in formats.attention.items() if fmt != AttentionFormat()]
    prefix = model.block_prefix
    number = re.compile(re.escape(prefix) + r"(\d+)\..*")
    indices = (number.fullmatch(name) for name in [*linear, *attention])
    groups = []
    for block in sorted({int(found[1]) for found in indices if found}):
        inside, everywhere = f"{prefix}{block}.", f"{prefix}*."
        for kind in model.layer_kinds:
            pattern = inside + kind.pattern
            layers = tuple(matching(pattern, linear))
            all_alike = everywhere + kind.pattern
            groups.append(LayerGroup(kind.name, pattern, layers, block, all_alike))
        for ring in (name for name in attention if name.startswith(inside)):
            all_alike = everywhere + ring.removeprefix(inside)
            groups.append(LayerGroup(RING, ring, (ring,), block, all_alike))
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
    """Returns the rules and a last one that leaves ``high`` in high precision.

    Returns no rules if all groups are in ``high``.
    """
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
            yield alike[0].everywhere
        else:
            yield from (group.pattern for group in alike)
