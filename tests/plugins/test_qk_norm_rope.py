import pytest
import torch
from operators import FLOATS, Ring, qkv_arguments

from vidc.exporters.parts.causal_wan.layers import RmsNorm, rotate
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.ring import ring_write

RING = Ring(batch=2, tokens=5, heads=3, head_dim=32, window=12, sink=3, position=10)


def arguments(taken):
    query, key, _ = taken["qkv"].split(RING.width, -1)
    weights = (taken["query_weight"], taken["key_weight"])
    return (query, key, *weights, taken["cos"], taken["sin"], RING.heads, taken["eps"])


@pytest.mark.parametrize("dtype", FLOATS)
def test_matches_the_models_norm_and_rotation(dtype):
    taken = qkv_arguments(RING, dtype, seed=3)
    query, key, *_ = given = arguments(taken)
    for found, projected, weight in zip(
        qk_norm_rope(*given), (query, key), given[2:4], strict=True
    ):
        norm = RmsNorm(RING.width, taken["eps"])
        norm.weight.data = weight
        heads = norm(projected).unflatten(-1, (RING.heads, RING.head_dim))
        assert torch.equal(found, rotate(heads, taken["cos"], taken["sin"]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_with_ring_writes_equals_the_fused_operator(dtype):
    taken = qkv_arguments(RING, dtype, seed=4)
    caches = [taken["key_cache"].clone(), taken["value_cache"].clone()]
    query, key = qk_norm_rope(*arguments(taken))
    value = taken["qkv"][..., 2 * RING.width :].unflatten(-1, (RING.heads, RING.head_dim))
    for cache, update in zip(caches, (key, value), strict=True):
        ring_write(cache, update, taken["position"], RING.sink)
    assert torch.equal(qk_norm_rope_ring_write(**taken), query)
    assert torch.equal(taken["key_cache"], caches[0])
    assert torch.equal(taken["value_cache"], caches[1])


def test_passes_opcheck():
    torch.library.opcheck(qk_norm_rope, arguments(qkv_arguments(RING, torch.bfloat16, seed=3)))
