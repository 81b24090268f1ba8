import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, Ring, qkv_arguments
from rings import rings

from vidc.exporters.parts.causal_wan.layers import RmsNorm, rotate
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.ring import ring_write

RING = Ring(batch=2, tokens=5, heads=3, head_dim=32, window=12, sink=3, position=10)


@given(
    ring=rings(), dtype=st.sampled_from(FLOATS), seed=st.integers(0, 99),
    deviation=st.sampled_from([1e-2, 1.0, 100.0]),
)  # fmt: skip
def test_queries_keys_and_values_match_float64(ring, dtype, seed, deviation):
    held.qkv(ring, qkv_arguments(ring, dtype, seed, deviation))


@pytest.mark.parametrize("dtype", FLOATS)
def test_matches_the_model(dtype):
    taken = qkv_arguments(RING, dtype, seed=3)
    norms = {}
    for name in ("query_weight", "key_weight"):
        norms[name] = RmsNorm(RING.width, taken["eps"])
        norms[name].weight.data = taken[name]
    query, key, value = taken["qkv"].split(RING.width, -1)
    rope = (taken["cos"], taken["sin"])
    caches = [taken["key_cache"].clone(), taken["value_cache"].clone()]
    heads = (RING.heads, RING.head_dim)
    rotated = rotate(norms["key_weight"](key).unflatten(-1, heads), *rope)
    ring_write(caches[0], rotated, taken["position"], RING.sink)
    ring_write(caches[1], value.unflatten(-1, heads), taken["position"], RING.sink)
    wanted = rotate(norms["query_weight"](query).unflatten(-1, heads), *rope)
    assert torch.equal(qk_norm_rope_ring_write(**taken), wanted)
    assert torch.equal(taken["key_cache"], caches[0])
    assert torch.equal(taken["value_cache"], caches[1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_passes_opcheck(dtype):
    taken = qkv_arguments(RING, dtype, seed=3)
    torch.library.opcheck(qk_norm_rope_ring_write, tuple(taken.values()))
