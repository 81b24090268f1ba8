import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FP8, Ring
from operators_8bit import arguments
from rings import rings

from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.transposed_values import ORDER, stored_at

RING = Ring(batch=2, tokens=21, heads=3, head_dim=32, window=48, sink=7, position=40)


@given(
    ring=rings(), deviation=st.sampled_from([1e-2, 1.0, 100.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]), to=st.sampled_from([FP8, torch.int8]),
    transposed=st.booleans(), quantized=st.booleans(), mean=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_queries_keys_and_values_match_float64(
    ring, dtype, to, deviation, transposed, quantized, mean, seed
):
    taken = arguments(ring, dtype, to, seed, deviation, transposed, quantized, mean)
    held.to_8bit(ring, taken)


@pytest.mark.parametrize("to", [FP8, torch.int8])
def test_query_amax_maps_to_the_largest_number(to):
    query, _ = qk_norm_rope_ring_write_static(*arguments(RING, to=to).values())
    assert (query.float().abs().amax(-1) == held.LARGEST[to]).all()


@pytest.mark.parametrize("to", [FP8, torch.int8])
def test_zero_heads_stay_zero(to):
    taken = arguments(RING, to=to, transposed=False, mean=False)
    taken["qkv"].zero_()
    query, scale = qk_norm_rope_ring_write_static(*taken.values())
    assert (query.float() == 0).all()
    assert (scale > 0).all()
    for name in ("key_cache", "value_cache"):
        assert (taken[name].float()[:, RING.slots()] == 0).all()


def test_order_of_transposed_values():
    stored = torch.empty(48, dtype=torch.int64)
    stored[stored_at(torch.arange(48))] = torch.arange(48)
    assert stored.tolist() == [16 * group + slot for group in range(3) for slot in ORDER]


@pytest.mark.parametrize("to", [FP8, torch.int8])
@pytest.mark.parametrize(("transposed", "quantized"), [(True, True), (False, False)])
def test_passes_opcheck(to, transposed, quantized):
    taken = arguments(RING, to=to, transposed=transposed, quantized=quantized)
    checks = ["test_autograd_registration", "test_faketensor"]
    if to is torch.int8:  # PyTorch cannot compare tensors of FP8 on a CPU.
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(qk_norm_rope_ring_write_static, tuple(taken.values()), test_utils=checks)
