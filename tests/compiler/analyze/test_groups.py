"""Groups of layers, and recipes that leave some of them out."""

import tomllib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped_recipes import of_targets

from vidc.compiler.analyze.groups import layer_groups, layers_of, with_high
from vidc.compiler.config.recipe import (
    HIGH,
    AttentionFormat,
    LinearFormat,
    Recipe,
    Rule,
    load_recipe,
    matching,
    parse_recipe,
    recipe_toml,
)
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.apply import apply_recipe

TINY = resolve("tiny", gpu="cpu", environ={}).model
LONGLIVE = resolve("longlive-1.3b", gpu="cpu", precision="fp32", environ={}).model
FP8 = load_recipe("fp8")
GROUPS = layer_groups(TINY, apply_recipe(FP8, TINY))


@pytest.mark.parametrize("name", of_targets())
def test_every_layer_in_8_bits_is_in_one_group(name):
    formats = apply_recipe(load_recipe(name), LONGLIVE)
    quantized = [n for n, f in formats.linear.items() if f.weights != HIGH]
    quantized += [n for n, f in formats.attention.items() if f != AttentionFormat()]
    assert sorted(layers_of(layer_groups(TINY, formats))) == sorted(quantized)


def test_a_block_has_six_groups():
    assert len(GROUPS) == 6 * TINY.transformer.layers
    first = {group.kind: group.layers for group in GROUPS if group.block == 0}
    assert first == {
        "self-attention qkv": tuple(f"blocks.0.attn1.to_{each}" for each in "qkv"),
        "self-attention out": ("blocks.0.attn1.to_out.0",),
        "cross-attention": tuple(f"blocks.0.attn2.to_{each}" for each in ("q", "k", "v", "out.0")),
        "ffn up": ("blocks.0.ffn.net.0.proj",),
        "ffn down": ("blocks.0.ffn.net.2",),
        "ring attention": ("blocks.0.attn1",),
    }


def test_pattern_matches_only_its_group():
    formats = apply_recipe(FP8, TINY)
    for group in GROUPS:
        names = formats.attention if group.kind == "ring attention" else formats.linear
        assert tuple(matching(group.pattern, names)) == group.layers


def test_layers_outside_the_blocks_are_groups_of_their_own():
    both = ("proj_out", "condition_embedder.time_proj", "blocks.1.ffn.net.2")
    found = layer_groups(
        TINY, apply_recipe(Recipe("r", "d", (Rule(both, LinearFormat("fp8", "fp8")),), ()), TINY)
    )
    assert Counter(group.kind for group in found) == {"other": 2, "ffn down": 1}
    assert {group.layers for group in found} == {(name,) for name in both}


@given(st.sets(st.sampled_from(GROUPS), max_size=len(GROUPS) - 1))
def test_recipe_leaves_chosen_groups_in_high_precision(kept):
    mixed = with_high(FP8, GROUPS, kept, "mixed")
    # As it is read from a file.
    found = apply_recipe(parse_recipe(tomllib.loads(recipe_toml(mixed)), "mixed"), TINY)
    whole = apply_recipe(FP8, TINY)
    high = set(layers_of([group for group in kept if group.kind != "ring attention"]))
    assert found.linear == {
        name: LinearFormat() if name in high else form for name, form in whole.linear.items()
    }
    rings = set(layers_of([group for group in kept if group.kind == "ring attention"]))
    assert found.attention == {
        name: AttentionFormat() if name in rings else form for name, form in whole.attention.items()
    }


def test_kind_chosen_in_all_blocks_is_one_pattern():
    groups = layer_groups(LONGLIVE, apply_recipe(FP8, LONGLIVE))
    kept = [group for group in groups if group.kind in ("ffn down", "ring attention")]
    kept.append(groups[0])
    mixed = with_high(FP8, groups, kept, "mixed")
    assert mixed.linear == (
        *FP8.linear,
        Rule(("blocks.0.attn1.to_*", "blocks.*.ffn.net.2"), LinearFormat()),
    )
    # Nothing would be left of these rules.
    assert mixed.attention == ()
