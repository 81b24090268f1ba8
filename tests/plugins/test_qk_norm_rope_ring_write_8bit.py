import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FP8, ROUNDING, Ring, turn
from operators_8bit import arguments

from vidc.plugins.qk_norm_rope_ring_write_8bit import (
    qk_norm_rope_ring_write_dynamic,
    qk_norm_rope_ring_write_static,
)
from vidc.plugins.transposed_values import ORDER, stored_at

OPERATORS = {False: qk_norm_rope_ring_write_static, True: qk_norm_rope_ring_write_dynamic}
LARGEST = {FP8: 448, torch.int8: 127}
RING = Ring(batch=2, tokens=21, heads=3, head_dim=32, window=48, sink=7, position=40)


@st.composite
def rings(draw):
    window = draw(st.integers(1, 4)) * 16
    sink = draw(st.integers(0, window - 1))
    position = draw(st.one_of(st.integers(0, 100), st.integers(2**31 - 9, 2**40)))
    most = max(sink - position, 0) + window - sink
    return Ring(
        batch=draw(st.integers(1, 2)), tokens=draw(st.integers(1, most)),
        heads=draw(st.integers(1, 3)), head_dim=draw(st.sampled_from([32, 64, 128])),
        window=window, sink=sink, position=position,
    )  # fmt: skip


def one_step(stored, scale, wanted, dtype, before=0.0):
    """Values rounded to 8 bits and, before that, ``before`` from what is wanted, all float64."""
    if dtype is FP8:
        step = ROUNDING[FP8] * wanted.abs() + 2.0**-10 * scale
    else:
        step = scale / 2 + 0 * wanted
    limit = LARGEST[dtype] * scale
    excess = (stored.double() * scale - wanted.clamp(-limit, limit)).abs() - 1.02 * (step + before)
    assert excess.max().item() <= 0


def rotated(x, weight, taken, dtype):
    """Of ``[B, T, H, D]`` in float64, and what rounding the norm to ``dtype`` may change of it."""
    x = x.double()
    normed = x * (x.square().mean((-2, -1), keepdim=True) + taken["eps"]).rsqrt()
    normed = normed * weight.double().reshape(x.shape[2:])
    pairs = normed.unflatten(-1, (-1, 2)).norm(dim=-1).repeat_interleave(2, -1)
    return turn(normed, taken["cos"], taken["sin"]), (ROUNDING[dtype] + 1e-6) * pairs + 1e-7


def by_largest(x):
    return x.abs().amax(-1, keepdim=True)


@given(
    ring=rings(), dynamic=st.booleans(), dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    to=st.sampled_from([FP8, torch.int8]), deviation=st.sampled_from([1e-2, 1.0, 100.0]),
    transposed=st.booleans(), quantized=st.booleans(), mean=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_queries_keys_and_values(
    ring, dynamic, dtype, to, deviation, transposed, quantized, mean, seed
):
    taken = arguments(ring, dynamic, dtype, to, seed, deviation, transposed, quantized, mean)
    changed = ("key_cache", "value_cache", "key_scale", "value_scale")
    before = {name: taken[name].clone() for name in changed}
    query, key, value = taken["qkv"].unflatten(-1, (3, ring.heads, ring.head_dim)).unbind(2)
    found, scale = OPERATORS[dynamic](*taken.values())
    slots = ring.slots()
    others = [slot for slot in range(ring.window) if slot not in slots.tolist()]

    def scales(name):
        """``[B, T, H, 1]`` or what broadcasts to it."""
        held = taken[name].double()
        return held[:, :, slots].transpose(1, 2)[..., None] if dynamic else held[:, None]

    def values(cache):
        """Slots and channels as in ``[B, S, H, D]``."""
        if transposed:
            cache = cache.view(torch.int8)[..., stored_at(torch.arange(ring.window))]
            return cache.permute(0, 3, 1, 2).contiguous().view(to)
        return cache

    wanted, slack = rotated(key, taken["key_weight"], taken, dtype)
    wanted = wanted - (taken["key_mean"].double() if mean else 0)
    one_step(taken["key_cache"].float()[:, slots], scales("key_scale"), wanted, to, slack)
    stored = values(taken["value_cache"])
    one_step(stored.float()[:, slots], scales("value_scale"), value.double(), to)

    wanted, slack = rotated(query, taken["query_weight"], taken, dtype)
    if quantized:
        assert found.dtype == to
        assert scale.shape == (ring.batch, ring.heads, ring.tokens)
        expected = by_largest(wanted) / LARGEST[to]
        by_token = scale.transpose(1, 2)[..., None].double()
        assert ((by_token - expected).abs() <= by_largest(slack) / LARGEST[to]).all()
        one_step(found.float(), by_token, wanted, to, slack)
    else:
        assert scale.shape == (0, ring.heads, ring.tokens)
        once = ROUNDING[dtype] * wanted.abs()
        assert ((found.double() - wanted).abs() <= 1.02 * (once + slack)).all()

    held = values(before["value_cache"])
    assert torch.equal(
        taken["key_cache"].view(torch.int8)[:, others],
        before["key_cache"].view(torch.int8)[:, others],
    )
    assert torch.equal(stored.view(torch.int8)[:, others], held.view(torch.int8)[:, others])
    for name in ("key_scale", "value_scale"):
        if dynamic:
            assert torch.equal(taken[name][..., others], before[name][..., others])
        else:
            assert torch.equal(taken[name], before[name])


@pytest.mark.parametrize("to", [FP8, torch.int8])
def test_a_dynamic_scale_lets_the_largest_value_be_the_largest_number(to):
    taken = arguments(RING, dynamic=True, to=to, transposed=False, mean=False)
    qk_norm_rope_ring_write_dynamic(*taken.values())
    for name in ("key_cache", "value_cache"):
        largest = taken[name].float()[:, RING.slots()].abs().amax(-1)
        assert (largest == LARGEST[to]).all()


@pytest.mark.parametrize("to", [FP8, torch.int8])
def test_heads_of_zeros_stay_zeros(to):
    taken = arguments(RING, dynamic=True, to=to, transposed=False, mean=False)
    taken["qkv"].zero_()
    query, scale = qk_norm_rope_ring_write_dynamic(*taken.values())
    assert (query.float() == 0).all()
    assert (scale > 0).all()
    for name in ("key_cache", "value_cache"):
        assert (taken[name].float()[:, RING.slots()] == 0).all()


def test_the_order_of_transposed_values():
    stored = torch.empty(48, dtype=torch.int64)
    stored[stored_at(torch.arange(48))] = torch.arange(48)
    assert stored.tolist() == [16 * group + slot for group in range(3) for slot in ORDER]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("to", [FP8, torch.int8])
@pytest.mark.parametrize(("transposed", "quantized"), [(True, True), (False, False)])
def test_they_are_operators_as_torch_wants_them(dynamic, to, transposed, quantized):
    taken = arguments(RING, dynamic, to=to, transposed=transposed, quantized=quantized)
    checks = ["test_autograd_registration", "test_faketensor"]
    if to is torch.int8:  # PyTorch cannot compare tensors of FP8 on a CPU.
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(OPERATORS[dynamic], tuple(taken.values()), test_utils=checks)
