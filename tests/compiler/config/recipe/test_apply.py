"""Formats of layers when recipes are applied to models."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped_recipes import of_targets

from vidc.compiler.config.recipe import (
    AttentionFormat,
    LinearFormat,
    Recipe,
    Rule,
    load_recipe,
    matching,
)
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.calibrated_tensors import linear_sizes
from vidc.plugins.errors import UsageError

TINY = resolve("tiny", gpu="cpu", environ={}).model
LONGLIVE = resolve("longlive-1.3b", gpu="cpu", precision="fp32", environ={}).model
FP8 = LinearFormat("fp8", "fp8")
CENTRED = ("fp8", "fp8-linear", "fp8-int8-attention")
"""Recipes that take the mean off inputs, but for those that GELU's kernel rounds."""
HIGH = ("condition_embedder.", "proj_out")


def of_linears(*rules):
    return Recipe("mine", "d", tuple(Rule(layers, format_) for layers, format_ in rules), ())


@pytest.mark.parametrize("name", of_targets())
def test_shipped_recipes_leave_other_layers_high(name):
    found = apply_recipe(load_recipe(name), LONGLIVE)
    assert found.linear.keys() == linear_sizes(LONGLIVE).keys()
    assert tuple(found.attention) == tuple(LONGLIVE.quantized_part.attentions)
    outside = {layer: f for layer, f in found.linear.items() if layer.startswith(HIGH)}
    assert len(outside) == 6
    assert set(outside.values()) == {LinearFormat()}
    inside = {layer: f for layer, f in found.linear.items() if layer not in outside}
    assert len({replace(f, center=False) for f in inside.values()}) == 1
    centered = {layer for layer, f in inside.items() if f.center}
    assert centered == (inside.keys() if name in CENTRED else set())
    assert len(set(found.attention.values())) == 1


def test_default_recipes_quantize_the_300_linears_of_the_blocks():
    for name, format_ in (("fp8", FP8), ("int8", LinearFormat("int8", "int8", "dynamic", 0.8))):
        found = apply_recipe(load_recipe(name), LONGLIVE)
        formats = [replace(f, center=False) for f in found.linear.values()]
        assert formats.count(format_) == 300
        assert found.flops_share > 0.99
    assert all(f.computes for f in apply_recipe(load_recipe("fp8"), LONGLIVE).attention.values())


def test_memory_recipes_quantize_no_matmul():
    found = apply_recipe(load_recipe("int8-weight-only"), LONGLIVE)
    assert found.flops_share == 0
    cache = apply_recipe(load_recipe("kv-fp8"), LONGLIVE)
    assert cache.flops_share == 0
    expected = AttentionFormat("high", "fp8", "fp8", "static", True)
    assert set(cache.attention.values()) == {expected}


def test_shares_by_hand():
    sizes, tokens = TINY.transformer, TINY.stream.block * TINY.frame_tokens
    d, f = sizes.dim, sizes.ffn_dim
    patch = d * 64
    a_pass = (
        2 * tokens * (6 * d * d + 2 * d * f) + tokens * (patch + 64 * d)
        + 3 * (sizes.freq_dim * d + d * d + 6 * d * d)
    )  # fmt: skip
    found = apply_recipe(of_linears((("blocks.1.ffn.net.2",), FP8)), TINY)
    assert found.flops_share == pytest.approx(tokens * d * f / a_pass)
    keys = apply_recipe(of_linears((("blocks.*.attn2.to_k",), FP8)), TINY)
    assert keys.flops_share == 0


def test_pattern_for_all_layers_quantizes_every_linear():
    found = apply_recipe(of_linears((("**",), FP8)), TINY)
    assert set(found.linear.values()) == {FP8}
    # The patch embedding is no Linear.
    assert 0.96 < found.flops_share < 1


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [("blocks.*.attn3.to_q", "blocks.*.attn"), ("blocks.2.ffn.net.2", "blocks.1.ffn.net.2")],
)
def test_layers_that_the_model_does_not_have(pattern, nearest):
    with pytest.raises(UsageError, match="VIDC-RECIPE-LAYER") as caught:
        apply_recipe(of_linears((("**",), FP8), ((pattern,), FP8)), TINY)
    assert caught.value.hint.startswith(f"did you mean '{nearest}")


def test_a_linear_is_no_attention_and_the_other_way_round():
    wrong = Recipe("mine", "d", (), (Rule(("blocks.*.attn2",), AttentionFormat()),))
    with pytest.raises(UsageError, match=r"no layer 'blocks\.\*\.attn2'"):
        apply_recipe(wrong, TINY)
    with pytest.raises(UsageError, match=r"no layer 'blocks\.\*\.attn1'"):
        apply_recipe(of_linears((("blocks.*.attn1",), FP8)), TINY)


patterns = st.sampled_from(["**", "blocks.**", "blocks.0.**", "**.attn1.*", "proj_out", "**.to_k"])
formats = st.sampled_from(
    [LinearFormat(), FP8, LinearFormat("int8"), LinearFormat("int8", "int8", "dynamic", 0.8)]
)
rules = st.lists(st.tuples(st.lists(patterns, min_size=1, max_size=3).map(tuple), formats))


@given(rules)
def test_of_several_rules_the_last_one_counts(given_):
    found = apply_recipe(of_linears(*given_), TINY)
    for name, format_ in found.linear.items():
        meaning = [f for ps, f in given_ if any(matching(p, [name]) for p in ps)]
        assert format_ == (meaning[-1] if meaning else LinearFormat())
    assert 0 <= found.flops_share <= 1
