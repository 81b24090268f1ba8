import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from operators import FLOATS, ROUNDING, Ring, qkv_arguments, rounded_once, turn

from vidc.exporters.causal_wan.layers import RmsNorm, rotate
from vidc.plugins.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ring import ring_write

RING = Ring(batch=2, tokens=5, heads=3, head_dim=32, window=12, sink=3, position=10)


@st.composite
def rings(draw):
    sink = draw(st.integers(0, 6))
    window = sink + draw(st.integers(1, 12))
    position = draw(st.one_of(st.integers(0, 40), st.integers(2**31 - 9, 2**40)))
    # From within the sink a block reaches the rest of the ring once, from beyond it not twice.
    most = max(sink - position, 0) + window - sink
    return Ring(
        batch=draw(st.integers(1, 2)), tokens=draw(st.integers(1, most)),
        heads=draw(st.integers(1, 3)), head_dim=draw(st.sampled_from([32, 64, 128])),
        window=window, sink=sink, position=position,
    )  # fmt: skip


def formula(x, weight, eps):
    """RMS norm over all heads of ``[B, T, H, D]`` in float64."""
    x = x.double()
    factor = (x.square().mean((-2, -1), keepdim=True) + eps).rsqrt()
    return x * factor * weight.double().reshape(x.shape[2:])


def near(found, x, weight, taken):
    """Rounded after the norm, in pairs that are then turned, and after that."""
    normed = formula(x, weight, taken["eps"])
    wanted = turn(normed, taken["cos"], taken["sin"])
    pairs = normed.unflatten(-1, (-1, 2)).norm(dim=-1).repeat_interleave(2, -1)
    slack = (1.05 * ROUNDING[found.dtype] + 1e-6) * pairs + 2.0**-24
    rounded_once(found, wanted, slack)


@given(
    ring=rings(), dtype=st.sampled_from(FLOATS), seed=st.integers(0, 99),
    deviation=st.sampled_from([1e-2, 1.0, 100.0]),
)  # fmt: skip
def test_queries_keys_and_values(ring, dtype, seed, deviation):
    taken = qkv_arguments(ring, dtype, seed, deviation)
    before = {name: taken[name].clone() for name in ("key_cache", "value_cache")}
    query, key, value = taken["qkv"].unflatten(-1, (3, ring.heads, ring.head_dim)).unbind(2)
    found = qk_norm_rope_ring_write(**taken)
    slots = ring.slots()
    assume(len(set(slots.tolist())) == ring.tokens)
    near(found, query, taken["query_weight"], taken)
    near(taken["key_cache"][:, slots], key, taken["key_weight"], taken)
    assert torch.equal(taken["value_cache"][:, slots], value)
    others = [slot for slot in range(ring.window) if slot not in slots.tolist()]
    for name, cache in before.items():
        assert torch.equal(taken[name][:, others], cache[:, others])


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_what_the_model_does(dtype):
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
def test_it_is_an_operator_as_torch_wants_them(dtype):
    taken = qkv_arguments(RING, dtype, seed=3)
    torch.library.opcheck(qk_norm_rope_ring_write, tuple(taken.values()))
