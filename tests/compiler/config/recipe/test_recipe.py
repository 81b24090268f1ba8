"""Recipes as TOML: what is read, and what is refused."""

import tomllib
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
    load_recipe,
    parse_recipe,
)
from vidc.compiler.config.toml import shipped
from vidc.plugins.errors import UsageError

GOOD = """
description = "mine"
[[linear]]
layers = ["blocks.*.ffn.**", "proj_out"]
weights = "int8"
activations = "int8"
scale = "dynamic"
smooth = 0.5
center = true
[[linear]]
layers = ["blocks.0.ffn.net.2"]
[[attention]]
layers = ["blocks.*.attn1"]
queries = "fp8"
keys = "fp8"
values = "fp8"
center = true
"""


def refused(text):
    with pytest.raises(UsageError) as caught:
        parse_recipe(tomllib.loads(text), "mine")
    assert caught.value.code == "VIDC-RECIPE-FIELD"
    return str(caught.value)


def test_a_recipe_is_its_rules_in_their_order(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    found = load_recipe(str(tmp_path / "mine.toml"))
    assert (found.name, found.description) == ("mine", "mine")
    assert [rule.layers for rule in found.linear] == [
        ("blocks.*.ffn.**", "proj_out"), ("blocks.0.ffn.net.2",),
    ]  # fmt: skip
    assert found.linear[0].format == LinearFormat("int8", "int8", "dynamic", 0.5, True)
    assert found.linear[1].format == LinearFormat()
    assert found.attention[0].format == AttentionFormat("fp8", "fp8", "fp8", "static", True)


def test_every_shipped_recipe_is_good():
    assert tuple(shipped("recipes")) == (
        "fp8", "fp8-dynamic", "fp8-int8-attention", "fp8-linear", "int8", "int8-attention",
        "int8-static", "int8-weight-only", "kv-fp8", "kv-int8", "latent-world-int8", "oasis-fp8",
        "oasis-int8", "svd-int8", "world-int8",
    )  # fmt: skip
    for name in tuple(shipped("recipes")):
        assert load_recipe(name).name == name


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"VIDC-RECIPE-NAME.*\n.*did you mean 'kv-fp8'"):
        load_recipe("kv_fp8")
    with pytest.raises(UsageError, match="VIDC-CONFIG-FILE"):
        load_recipe("missing.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('description = "mine"', "", "has no description"),
        ('description = "mine"', "description = 3", "has no description"),
        ('description = "mine"', 'description = "mine"\nlinaer = 1', "did you mean 'linear'"),
        ("smooth = 0.5", "smoth = 0.5", "did you mean 'smooth'"),
        ("smooth = 0.5", "smooth = 1.5", "does not lie between 0 and 1"),
        ("smooth = 0.5", "smooth = nan", "not a finite number"),
        ("smooth = 0.5", 'smooth = "0.5"', "not a finite number"),
        ('weights = "int8"', 'weights = "int4"', "did you mean 'int8'"),
        ('weights = "int8"', 'weights = "fp8"', "activations in int8 need weights in int8 too"),
        ('activations = "int8"', "", "scale, smooth and center are about activations"),
        ("smooth = 0.5\ncenter = true", "center = 0.5", "not true or false"),
        ('scale = "dynamic"', 'scale = "row"', "scale = 'row'"),
        ('layers = ["blocks.*.attn1"]', "layers = []", "names no layers"),
        ('layers = ["blocks.*.attn1"]', "", "names no layers"),
        ('layers = ["blocks.*.attn1"]', 'layers = "blocks"', "names no layers"),
        ('layers = ["blocks.*.attn1"]', "layers = [1]", "1 is no pattern"),
        ('layers = ["blocks.*.attn1"]', 'layers = ["a b"]', "'a b' is no pattern"),
        ('keys = "fp8"', 'keys = "int8"', "queries in fp8 need keys in fp8 too"),
        ('values = "fp8"', "", "queries in fp8 need values in 8 bits too"),
        ('values = "fp8"\ncenter = true', 'values = "fp8"\ncenter = 1', "not true or false"),
        ("[[attention]]", "[attention]", "no list of tables"),
    ],
)
def test_error_names_the_invalid_field(old, new, says):
    assert old in GOOD
    assert says in refused(GOOD.replace(old, new))


def test_recipe_needs_rules_with_8_bit_formats():
    assert "has no rules" in refused('description = "mine"')
    assert "center are about activations" in refused(
        'description = "mine"\n[[linear]]\nlayers = ["a"]\nweights = "fp8"\ncenter = true'
    )
    assert "center is about keys" in refused(
        'description = "mine"\n[[attention]]\nlayers = ["a"]\nvalues = "fp8"\ncenter = true'
    )


CONVOLUTIONS = """
description = "mine"
[[convolution]]
layers = ["**.conv1"]
weights = "int8"
activations = "int8"
"""


def test_convolutions_have_rules_of_their_own():
    (rule,) = parse_recipe(tomllib.loads(CONVOLUTIONS), "mine").convolution
    assert rule.format == ConvolutionFormat("int8", "int8")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('activations = "int8"', "", "in int8 needs activations in int8 too"),
        ('weights = "int8"', 'weights = "fp8"', "weights = 'fp8'"),
        ('weights = "int8"', 'weights = "int8"\nsmooth = 0.5', "smooth"),
    ],
)
def test_error_names_the_invalid_field_of_a_convolution(old, new, says):
    assert says in refused(CONVOLUTIONS.replace(old, new))


layers = st.lists(st.sampled_from(["**", "blocks.*.ffn.**", "proj_out"]), min_size=1)
SMOOTH = (0.0, 0.5)
LINEAR = [
    chosen
    for chosen in product(FORMATS, FORMATS, SCALES, SMOOTH, (False, True))
    if LinearFormat(*chosen).problem is None
]
ATTENTION = [
    chosen
    for chosen in product(FORMATS, FORMATS, FORMATS, SCALES, (False, True))
    if AttentionFormat(*chosen).problem is None
]


@st.composite
def linear(draw):
    weights, activations, scale, smooth, center = draw(st.sampled_from(LINEAR))
    smooth = draw(st.floats(0, 1)) if smooth else 0.0
    return LinearFormat(weights, activations, scale, smooth, center)


attention = st.sampled_from(ATTENTION).map(lambda chosen: AttentionFormat(*chosen))


def tables(formats):
    rule = st.tuples(layers, formats).map(lambda pair: {"layers": pair[0], **vars(pair[1])})
    return st.lists(rule, min_size=1, max_size=4)


@given(tables(linear()), tables(attention))
def test_every_good_rule_comes_back(linears, attentions):
    found = parse_recipe({"description": "d", "linear": linears, "attention": attentions}, "mine")
    for rules, given_ in ((found.linear, linears), (found.attention, attentions)):
        assert [{"layers": list(r.layers), **vars(r.format)} for r in rules] == given_


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["fp8", "a.b", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layers", "weights", "scale", "keys", "smooth", "other"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["description", "linear", "attention", "x"]), values))
def test_invalid_tables_raise_coded_errors_only(table):
    try:
        found = parse_recipe(table, "mine")
    except UsageError as error:
        code, rules = error.code, ()
    else:
        code, rules = None, (*found.linear, *found.attention)
    assert code == "VIDC-RECIPE-FIELD" or rules
    assert all(rule.format.problem is None for rule in rules)
