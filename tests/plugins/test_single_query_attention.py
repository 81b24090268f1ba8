"""The form of ``ring_attention`` for one query a sample equals its reference."""

import pytest
import torch

from vidc.plugins.ops.ring import ring_attention_reference, single_query_attention


@pytest.mark.parametrize("valid", [1, 3, 8])
@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_single_query_attention_equals_the_reference(valid, dtype, limit):
    generator = torch.Generator().manual_seed(valid)
    query = torch.randn(5, 1, 2, 16, generator=generator)
    keys, values = (torch.randn(5, 8, 2, 16, generator=generator) for _ in "kv")
    length = torch.tensor([valid])
    expected = ring_attention_reference(query, keys, values, length)
    found = single_query_attention(query.to(dtype), keys.to(dtype), values.to(dtype), length)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    assert (found.float() - expected).norm() / expected.norm() < limit


def test_slots_that_are_not_valid_do_not_matter():
    query, keys, values = torch.randn(3, 1, 2, 8), *torch.randn(2, 3, 6, 2, 8)
    length = torch.tensor([4])
    found = single_query_attention(query, keys, values, length)
    keys[:, 4:], values[:, 4:] = 1e4, -1e4
    assert single_query_attention(query, keys, values, length).equal(found)
