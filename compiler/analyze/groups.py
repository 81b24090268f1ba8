"""The groups of layers that a recipe quantizes, each of which can be kept high by itself."""

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
"""What a block's Linears are, and the pattern of those of one kind within it."""
RING = "ring attention"
"""A self-attention's own products, and the keys and values of its ring."""
OTHER = "other"
"""A Linear outside the blocks."""
_BLOCK = re.compile(r"blocks\.(\d+)\..*")


@dataclass(frozen=True)
class LayerGroup:
    """Layers of one block and kind.

    Linears that read the same tensor are in one group, so that a group's numbers are the same
    whichever other groups are quantized.

    Attributes:
        kind: a key of ``KINDS``, ``RING`` or ``OTHER``.
        pattern: that means them, in a recipe.
        layers: those of them that are quantized, by name.
        block: of the transformer, None of kind ``OTHER``.
    """

    kind: str
    pattern: str
    layers: tuple[str, ...]
    block: int | None


def layer_groups(formats: Quantization) -> tuple[LayerGroup, ...]:
    """The groups of all that these formats quantize, block by block."""
    linear = [name for name, form in formats.linear.items() if form.weights != HIGH]
    attention = [name for name, form in formats.attention.items() if form != AttentionFormat()]
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
    """All layers of these groups."""
    return tuple(layer for group in groups for layer in group.layers)


def with_kept_high(
    recipe: Recipe, groups: Sequence[LayerGroup], kept: Collection[LayerGroup], description: str
) -> Recipe:
    """A recipe that does what ``recipe`` does, but for the groups that are kept high.

    Args:
        recipe: whose rules come first.
        groups: all of its groups, of which not all are kept.
        kept: some of them.
        description: of the new one.
    """
    ring = [group for group in groups if group.kind == RING]
    linear = [group for group in groups if group.kind != RING]
    return Recipe(
        recipe.name,
        description,
        _with_high(recipe.linear, linear, kept, LinearFormat()),
        _with_high(recipe.attention, ring, kept, AttentionFormat()),
    )


def _with_high(
    rules: tuple[Rule[Format], ...],
    groups: Sequence[LayerGroup],
    kept: Collection[LayerGroup],
    high: Format,
) -> tuple[Rule[Format], ...]:
    """The rules and one more, or none where nothing would be left of them."""
    chosen = [group for group in groups if group in kept]
    if len(chosen) == len(groups):
        return ()
    if not chosen:
        return rules
    # The last rule that means a layer counts.
    return tuple(chain(rules, [Rule(tuple(_patterns(groups, chosen)), high)]))


def _patterns(groups: Sequence[LayerGroup], chosen: Sequence[LayerGroup]) -> Iterator[str]:
    """Patterns of the chosen ones: one for a kind of which all blocks are chosen."""
    for kind in dict.fromkeys(group.kind for group in chosen):
        alike = [group for group in chosen if group.kind == kind]
        everywhere = len(alike) == sum(group.kind == kind for group in groups)
        if everywhere and len(alike) > 1 and kind != OTHER:
            yield alike[0].pattern.replace(f"blocks.{alike[0].block}.", "blocks.*.", 1)
        else:
            yield from (group.pattern for group in alike)
