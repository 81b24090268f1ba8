"""Patterns over names of layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.config.recipe import is_pattern, matching, require_matching
from vidc.plugins.errors import UsageError

NAMES = (
    "blocks.0.attn1.to_q", "blocks.0.ffn.net.2", "blocks.10.attn1.to_q", "blocks.10.ffn.net.2",
    "condition_embedder.time_proj", "proj_out",
)  # fmt: skip
names = st.lists(st.sampled_from(["a", "b1", "net", "0", "12"]), min_size=1, max_size=4).map(
    ".".join
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", [0, 1, 2, 3, 4, 5]),
        ("*", [5]),
        ("proj_out", [5]),
        ("proj_*", [5]),
        ("blocks.*.attn1.to_*", [0, 2]),
        ("blocks.**", [0, 1, 2, 3]),
        ("blocks.0.**", [0, 1]),
        ("blocks.1*.**", [2, 3]),
        ("**.net.*", [1, 3]),
        ("**.time_proj", [4]),
        ("blocks.*", []),
        ("blocks", []),
        ("*.*", [4]),
    ],
)
def test_pattern_matches_names(pattern, expected):
    assert is_pattern(pattern)
    assert matching(pattern, NAMES) == [NAMES[index] for index in expected]


@given(names, st.lists(names))
def test_name_matches_itself(name, others):
    assert is_pattern(name)
    assert matching(name, [*others, name]) == [other for other in [*others, name] if other == name]


@given(names, st.data())
def test_parts_may_be_left_open(name, data):
    parts = name.split(".")
    opened = [data.draw(st.sampled_from([part, "*", "**", part[0] + "*"])) for part in parts]
    assert matching(".".join(opened), [name]) == [name]


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a[0]", "***", "a/b", "é"])
def test_texts_that_are_no_patterns(text):
    assert not is_pattern(text)


@pytest.mark.parametrize(
    ("pattern", "suggested"),
    [
        ("blocks.*.attn1.to_x", "blocks.*.attn1.to_q"),
        ("blocks.*.fnn.net.2", "blocks.*.ffn.net.2"),
        ("proj_in", "proj_out"),
        ("blocks.0.attn1.toq", "blocks.0.attn1.to_q"),
    ],
)
def test_unmatched_pattern_is_refused_with_nearest_name(pattern, suggested):
    with pytest.raises(UsageError) as caught:
        require_matching(pattern, NAMES, "recipe mine")
    assert (caught.value.code, caught.value.exit_code) == ("VIDC-RECIPE-LAYER", 2)
    assert caught.value.message == f"recipe mine: the model has no layer {pattern!r}"
    assert caught.value.hint.startswith(
        f"did you mean {suggested!r}? layers: blocks.*.attn1.to_q, "
    )


def test_a_refusal_lists_few_of_many_layers():
    names = [f"part_{index}.proj" for index in range(200)]
    with pytest.raises(UsageError) as caught:
        require_matching("blocks.*.ffn", names, "recipe mine")
    assert caught.value.hint.count(".proj") == 12
    assert caught.value.hint.endswith(" and 188 more")
