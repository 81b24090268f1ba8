"""Everything around the kernel that merges padding: a kernel in torch stands for it."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_kernel import TorchKernel, between_nan

from vidc.plugins.errors import UnavailableError, UsageError
from vidc.plugins.ops import flash_attention as module
from vidc.plugins.ops.flash_attention import LaunchFacts
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.padded_attention_sm90 import attend_to_distinct, padded_attention_sm90

FACTS = LaunchFacts(
    symbol="attend", dtype="float16", head_dim=64, capability=(9, 0), tile_m=8, tile_n=8,
    threads=128, shared_bytes=1000, parameter_bytes=(12, 40, 16, 128, 128, 128, 128, 4, 4, 4),
    sizes=0, logsumexp=1, lengths=2, query=3, key=4, value=5, output=6, scale=7, log2e=8,
    capacity=9,
)  # fmt: skip


@pytest.fixture
def kernel(monkeypatch):
    made = TorchKernel(FACTS)
    made.install(monkeypatch, processors=8)
    yield made
    module._tensor_map.cache_clear()


@pytest.mark.parametrize("lengths", [(1,), (7,), (40,), (1, 40), (3, 17, 39)])
def test_kernel_merges_the_padding_of_each_sample(kernel, lengths):
    batch, slots = len(lengths), 40
    query, key, value = (between_nan(batch, rows, 2, 64) for rows in (21, slots, slots))
    for row, length in enumerate(lengths):
        for each in (key, value):
            each[row, length:] = each[row, length - 1].clone()
    length = torch.tensor(lengths, dtype=torch.int32)
    output = padded_attention_sm90(query, key, value, length)
    assert kernel.grids == [(3, 2, batch)]
    expected = padded_attention(query.float(), key.float(), value.float(), length)
    torch.testing.assert_close(output.float(), expected, atol=2e-3, rtol=2e-3)


def test_lengths_may_be_strided(kernel):
    query, key, value = (between_nan(2, rows, 1, 64) for rows in (3, 8, 8))
    lengths = torch.tensor([2, 9, 5, 9], dtype=torch.int32)
    given = lengths[::2]
    assert not given.is_contiguous()
    output = padded_attention_sm90(query, key, value, given)
    expected = padded_attention_sm90(query, key, value, given.clone())
    assert torch.equal(output, expected)


def test_fake_has_the_shape_of_the_queries():
    with FakeTensorMode():
        query, key = (torch.ones(2, rows, 3, 64, dtype=torch.bfloat16) for rows in (5, 9))
        result = padded_attention_sm90(query, key, key, torch.ones(2, dtype=torch.int32))
    assert result.shape == (2, 5, 3, 64)
    assert result.is_contiguous()


def test_a_kernel_of_rings_does_not_serve_it(monkeypatch):
    """Nor does this one serve a ring."""
    made = TorchKernel(replace(FACTS, log2e=None, capacity=None))
    made.install(monkeypatch, processors=8)
    query = between_nan(1, 3, 1, 64)
    with pytest.raises(UnavailableError, match=r"padded_attention_sm90.*none is loaded") as caught:
        padded_attention_sm90(query, query, query, torch.tensor([1], dtype=torch.int32))
    assert caught.value.code == "VIDC-KERNEL-MISSING"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("query", torch.Tensor.float, "bfloat16 or float16"),
        ("length", torch.Tensor.long, "int32"),
        ("key", lambda t: t.transpose(1, 2).contiguous().transpose(1, 2), "a contiguous tensor"),
        ("length", lambda t: t.to("meta"), "query's device cpu"),
    ],
)
def test_rejects_arguments(kernel, name, change, expected):
    given = {
        "query": between_nan(1, 3, 2, 64), "key": between_nan(1, 8, 2, 64),
        "value": between_nan(1, 8, 2, 64), "length": torch.tensor([2], dtype=torch.int32),
    }  # fmt: skip
    given[name] = change(given[name])
    message = f"vidc::padded_attention_sm90: {name}: expected .*{expected}"
    with pytest.raises(UsageError, match=message) as caught:
        attend_to_distinct(**given)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
    assert kernel.grids == []
