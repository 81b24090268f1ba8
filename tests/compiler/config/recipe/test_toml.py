"""Recipes that are written come back."""

import tomllib
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.config.recipe import (
    FORMATS,
    SCALES,
    AttentionFormat,
    ConvolutionFormat,
    LinearFormat,
    Recipe,
    Rule,
    load_recipe,
    parse_recipe,
    recipe_toml,
)
from vidc.compiler.config.toml import shipped

layers = st.lists(
    st.sampled_from(["**", "blocks.*.ffn.**", "blocks.10.attn1.to_*", "proj_out"]),
    min_size=1,
    max_size=40,
).map(tuple)
linears = [
    found
    for parts in product(FORMATS, FORMATS, SCALES, (0.0, 0.5), (False, True))
    if (found := LinearFormat(*parts)).problem is None
]
linear = st.builds(
    lambda found, smooth: replace(found, smooth=smooth) if found.smooth else found,
    st.sampled_from(linears),
    st.floats(0, 1),
)
attention = st.sampled_from(
    [
        found
        for parts in product(FORMATS, FORMATS, FORMATS, SCALES, (False, True))
        if (found := AttentionFormat(*parts)).problem is None
    ]
)


def rules(formats):
    return st.lists(st.builds(Rule, layers, formats), max_size=4).map(tuple)


recipes = st.builds(
    Recipe,
    st.just("mine"),
    st.text(min_size=1).filter(lambda text: text.strip()),
    rules(linear),
    rules(attention),
    rules(st.sampled_from([ConvolutionFormat(), ConvolutionFormat("int8", "int8")])),
).filter(lambda recipe: recipe.linear or recipe.attention or recipe.convolution)


@given(recipes, st.lists(st.text(), max_size=5))
def test_recipes_round_trip_with_any_comments(recipe, comments):
    assert parse_recipe(tomllib.loads(recipe_toml(recipe, comments)), "mine") == recipe


@pytest.mark.parametrize("name", tuple(shipped("recipes")))
def test_shipped_recipes_come_back_from_a_file(name, tmp_path):
    file = tmp_path / f"{name}.toml"
    file.write_text(recipe_toml(load_recipe(name), ["a comment"]))
    assert load_recipe(str(file)) == load_recipe(name)


def test_a_person_can_read_it():
    recipe = Recipe(
        "mine",
        "what it is for",
        (
            Rule(("blocks.*.ffn.**",), LinearFormat("int8", "int8", smooth=0.8, center=True)),
            Rule(tuple(f"blocks.{i}.ffn.net.0.proj" for i in range(4)), LinearFormat()),
        ),
        (),
    )
    assert (
        recipe_toml(recipe, ["why", ""])
        == """# why
#
description = "what it is for"

[[linear]]
layers = ["blocks.*.ffn.**"]
weights = "int8"
activations = "int8"
smooth = 0.8
center = true

[[linear]]
layers = [
    "blocks.0.ffn.net.0.proj",
    "blocks.1.ffn.net.0.proj",
    "blocks.2.ffn.net.0.proj",
    "blocks.3.ffn.net.0.proj",
]
weights = "high"
"""
    )
