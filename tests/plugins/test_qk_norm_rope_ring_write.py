import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from operators import FLOATS, ROUNDING, Ring, qkv_arguments, rounded_once, turn

from vidc.exporters.causal_wan.layers import RmsNorm, rotate
from vidc.plugins.errors import UsageError
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


WRONG = {
    "dtype": ("qkv", lambda t: t.double(), "bfloat16 or float16 or float32", "float64"),
    "qkv": ("qkv", lambda t: t[..., 8:], r"shape \[2, T, 288\]", r"\[2, 5, 280\]"),
    "head size": ("key_cache", lambda t: t[..., :24], "a head size of 32, 64 or 128", "24"),
    "width": ("key_cache", lambda t: t.repeat(1, 1, 100, 1), "at most 8192", "9600"),
    "weight": ("key_weight", lambda t: t[1:], r"shape \[96\]", r"\[95\]"),
    "its dtype": ("query_weight", lambda t: t.half(), "bfloat16", "float16"),
    "angles": ("cos", lambda t: t[1:], r"shape \[5, 16\]", r"\[4, 16\]"),
    "their dtype": ("sin", lambda t: t.double(), "float32", "float64"),
    "position": ("position", lambda t: t[0], r"shape \[1\]", r"\[\]"),
    "its type": ("position", lambda t: t.int(), "int64", "int32"),
    "window": ("key_cache", lambda t: t[:, :4], "at most 4 tokens", "5"),
    "sink": ("sink", lambda _: 12, "from 0 to 11", "12"),
    "a negative sink": ("sink", lambda _: -1, "from 0 to 11", "-1"),
    "values": ("value_cache", lambda t: t[:1], r"shape \[2, 12, 3, 32\]", r"\[1, 12, 3, 32\]"),
    "values' dtype": ("value_cache", lambda t: t.half(), "bfloat16", "float16"),
}


@pytest.mark.parametrize(("name", "change", "expected", "found"), WRONG.values(), ids=WRONG)
def test_what_no_kernel_takes_is_refused(name, change, expected, found):
    taken = qkv_arguments(RING, torch.bfloat16, seed=3)
    taken[name] = change(taken[name])
    message = rf"vidc::qk_norm_rope_ring_write: .*expected .*{expected}, found {found}"
    with pytest.raises(UsageError, match=message) as caught:
        qk_norm_rope_ring_write(**taken)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
