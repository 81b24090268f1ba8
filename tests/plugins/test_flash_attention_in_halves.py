"""The operator's numbers with a kernel in torch, which reads and writes where it is told to."""

import pytest
import torch
from torch_kernel import TorchKernel, between_nan

from vidc.plugins.ops import flash_attention as module
from vidc.plugins.ops.flash_attention import LaunchFacts, flash_attention_sm90
from vidc.plugins.ops.key_split import LEAST_KEYS
from vidc.plugins.ops.ring import ring_attention_reference

FACTS = LaunchFacts(
    symbol="attend", dtype="float16", head_dim=64, capability=(9, 0), tile_m=8, tile_n=8,
    threads=128, shared_bytes=1000, parameter_bytes=(12, 40, 16, 128, 128, 128, 128, 4),
    sizes=0, logsumexp=1, lengths=2, query=3, key=4, value=5, output=6, scale=7,
)  # fmt: skip
PROCESSORS = 8


@pytest.fixture
def kernel(monkeypatch):
    made = TorchKernel(FACTS)
    made.install(monkeypatch, PROCESSORS)
    yield made
    module._tensor_map.cache_clear()


HALF = LEAST_KEYS // 2


@pytest.mark.parametrize("valid", [1, HALF, HALF + 1, 2 * HALF])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "grids"),
    [
        (1, 75, 1, [(8, 1, 1), (2, 1, 2)]),
        (2, 37, 1, [(4, 1, 2), (1, 1, 4)]),
        (1, 11, 2, [(2, 2, 2)]),
        (2, 5, 2, [(1, 2, 4)]),
        (1, 64, 1, [(8, 1, 1)]),
    ],
)
def test_merged_halves_equal_full_attention(kernel, batch, tokens, heads, grids, valid):
    query, key, value = (between_nan(batch, n, heads, 64) for n in (tokens, 2 * HALF, 2 * HALF))
    length = torch.tensor([valid])
    output = flash_attention_sm90(query, key, value, length)
    assert kernel.grids == grids
    expected = ring_attention_reference(query.float(), key.float(), value.float(), length)
    torch.testing.assert_close(output.float(), expected, atol=2e-3, rtol=2e-3)
