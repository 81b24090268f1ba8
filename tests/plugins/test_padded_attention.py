"""Attention to a padded text is attention to all of its keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from merged_padding import merged_attention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.padded_attention import padded_attention

SLOTS, HEADS, HEAD_DIM = 9, 3, 8


def tensors(lengths=(4, 9), tokens=5, slots=SLOTS, seed=1):
    """Keys and values from each length on repeat the one before."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows):
        return torch.randn(len(lengths), rows, HEADS, HEAD_DIM, generator=generator)

    query, key, value = draw(tokens), draw(slots), draw(slots)
    for row, length in enumerate(lengths):
        for each in (key, value):
            each[row, length:] = each[row, length - 1].clone()
    return {
        "query": query, "key": key, "value": value,
        "length": torch.tensor(lengths, dtype=torch.int32),
    }  # fmt: skip


@st.composite
def padded(draw):
    slots = draw(st.integers(1, 20))
    lengths = draw(st.lists(st.integers(1, slots), min_size=1, max_size=3))
    return tensors(tuple(lengths), draw(st.integers(1, 6)), slots, draw(st.integers(0, 99)))


@given(padded())
def test_equals_attention_to_every_key(given):
    heads_first = (given[name].transpose(1, 2) for name in ("query", "key", "value"))
    expected = scaled_dot_product_attention(*heads_first).transpose(1, 2)
    torch.testing.assert_close(padded_attention(**given), expected, atol=1e-6, rtol=1e-6)


@given(padded())
def test_one_key_with_the_logarithm_of_their_number_stands_for_equal_keys(given):
    expected = padded_attention(**given)
    found = merged_attention(**given)
    assert (found - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("attend", [padded_attention, merged_attention])
def test_keys_after_the_distinct_ones_are_not_read(attend):
    given = tensors(lengths=(4, 2))
    expected = attend(**given)
    for row, length in enumerate((4, 2)):
        given["key"][row, length:] = given["value"][row, length:] = torch.nan
    assert torch.equal(attend(**given), expected)


def test_a_wrong_length_gives_another_result():
    given = tensors(lengths=(4, 4))
    expected = padded_attention(**given)
    for wrong in (3, 5):
        found = merged_attention(**given | {"length": torch.tensor([wrong] * 2)})
        # Five keys of which the last is repeated are the same keys.
        assert torch.allclose(found, expected, atol=1e-5) == (wrong == 5)


def test_fake_has_the_shape_of_the_queries():
    with FakeTensorMode():
        result = padded_attention(**tensors())
    assert result.shape == (2, 5, HEADS, HEAD_DIM)
    assert result.is_contiguous()


REFUSED = {
    "query of 3 dimensions": ("query", lambda t: t[0], r"\[B, T, H, D\]", r"\[5, 3, 8\]"),
    "key of another batch": ("key", lambda t: t[:1], r"\[2, S, 3, 8\]", r"\[1, 9, 3, 8\]"),
    "value of other slots": ("value", lambda t: t[:, :4], r"\[2, 9, 3, 8\]", r"\[2, 4, 3, 8\]"),
    "key in float16": ("key", lambda t: t.half(), "float32", "float16"),
    "one length": ("length", lambda t: t[:1], r"\[2\]", r"\[1\]"),
    "lengths in int64": ("length", lambda t: t.long(), "int32", "int64"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "expected", "found"), REFUSED.values(), ids=REFUSED)
def test_rejects_arguments_also_in_the_fake(name, change, expected, found):
    given = tensors()
    given[name] = change(given[name])
    message = f"vidc::padded_attention: {name}: expected .*{expected}.*, found .*{found}"
    for arguments in (given, {key: tensor.to("meta") for key, tensor in given.items()}):
        with pytest.raises(UsageError, match=message) as caught:
            padded_attention(**arguments)
        assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
