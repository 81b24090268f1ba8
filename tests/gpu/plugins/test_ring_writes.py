"""Operators that write keys and values to a ring, held to what their references are held to."""

from dataclasses import replace

import held
import pytest
import torch
from captured import captured
from depth import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operators import FLOATS, FP8, Ring, on, qkv_arguments
from operators_8bit import arguments as to_8bit_arguments
from rings import rings
from tensors import bits

from vidc.plugins.ops.qk_norm_rope_ring_write import (
    qk_norm_rope_ring_write,
    qk_norm_rope_ring_write_reference,
)
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static

pytestmark = pytest.mark.usefixtures("library")
CUDA = torch.device("cuda", 0)
LONGLIVE = Ring(
    batch=1, tokens=4680, heads=12, head_dim=128, window=18720, sink=4680, position=17160
)
"""A block that wraps in the middle."""
DEMO = Ring(batch=1, tokens=243, heads=4, head_dim=64, window=972, sink=243, position=0)
"""Blocks of the demo, whose ring of 12 frames of 81 tokens is no multiple of 16."""
on_a_gpu = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60)
)


@on_a_gpu
@given(
    ring=rings(), dtype=st.sampled_from(FLOATS), seed=st.integers(0, 99),
    deviation=st.sampled_from([1e-2, 1.0, 100.0]),
)  # fmt: skip
def test_ring_write(ring, dtype, seed, deviation):
    held.qkv(ring, qkv_arguments(ring, dtype, seed, deviation), CUDA)


@on_a_gpu
@given(
    ring=rings(), deviation=st.sampled_from([1e-2, 1.0, 100.0]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]), to=st.sampled_from([FP8, torch.int8]),
    transposed=st.booleans(), quantized=st.booleans(), mean=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_ring_write_8bit(ring, dtype, to, deviation, transposed, quantized, mean, seed):
    taken = to_8bit_arguments(ring, dtype, to, seed, deviation, transposed, quantized, mean)
    held.to_8bit(ring, taken, CUDA)


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 32), (4, 64), (40, 128), (64, 128)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_ring_write_of_other_widths(heads, head_dim, dtype):
    ring = replace(LONGLIVE, batch=2, tokens=70, heads=heads, head_dim=head_dim, window=160,
                   sink=40, position=130)  # fmt: skip
    held.qkv(ring, qkv_arguments(ring, dtype, 1), CUDA)
    if dtype is not torch.float32:
        held.to_8bit(ring, to_8bit_arguments(ring, dtype), CUDA)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_at_the_sizes_of_longlive(dtype):
    held.qkv(LONGLIVE, qkv_arguments(LONGLIVE, dtype, 1), CUDA)
    held.to_8bit(LONGLIVE, to_8bit_arguments(LONGLIVE, dtype), CUDA)


@pytest.mark.parametrize("to", [FP8, torch.int8], ids=str)
def test_ring_write_8bit_at_the_sizes_of_the_demo(to):
    for position in (*range(0, 9 * 243, 243), 1, 800, 971):
        ring = replace(DEMO, position=position)
        held.to_8bit(ring, to_8bit_arguments(ring, to=to), CUDA)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ring_write_rounds_like_its_reference(dtype):
    """Sums in another order change the rounding of one value in thousands, not of one in three."""
    ring = replace(LONGLIVE, tokens=70, window=160, sink=40, position=130)
    taken = qkv_arguments(ring, dtype, 1)
    found, after = held.run(qk_norm_rope_ring_write, taken, CUDA)
    wanted = qk_norm_rope_ring_write_reference(*taken.values())
    for a, b in ((found, wanted), (after["key_cache"], taken["key_cache"])):
        assert (a != b).float().mean().item() < 5e-3


@pytest.mark.parametrize("position", [0, 7, 40, 100, 2**40 + 1])
def test_excess_tokens_do_not_write_outside_the_ring(position):
    """Shared slots have no defined content; the sink and later slots must be intact."""
    ring = replace(LONGLIVE, tokens=150, heads=3, window=160, sink=128, position=position)
    for operator, taken in (
        (qk_norm_rope_ring_write, qkv_arguments(ring, torch.bfloat16, 1)),
        (qk_norm_rope_ring_write_static, to_8bit_arguments(ring)),
    ):
        given = on(CUDA, taken)
        caches = ("key_cache", "value_cache")
        padded = {name: torch.full((3, *given[name].shape), 7).to(given[name]) for name in caches}
        for name in caches:
            given[name] = padded[name][1]
        operator(*given.values())
        torch.cuda.synchronize()
        for name in caches:
            assert (padded[name][0].float() == 7).all()
            assert (padded[name][2].float() == 7).all()


POSITIONS = (0, 1, 5, 40, 90, 119, 120, 121, 159, 160, 1000, 2**33)


@pytest.mark.parametrize("form", ["16 bits", "8 bits"])
def test_one_graph_serves_every_position(form):
    ring = replace(LONGLIVE, batch=2, tokens=70, heads=3, window=160, sink=40, position=0)
    if form == "16 bits":
        operator, taken = qk_norm_rope_ring_write, qkv_arguments(ring, torch.bfloat16, 1)
    else:
        operator, taken = qk_norm_rope_ring_write_static, to_8bit_arguments(ring)
    given = on(CUDA, taken)
    graph, results = captured(lambda: operator(*given.values()))
    for position in POSITIONS:
        fresh = taken | {"position": torch.tensor([position])}
        wanted = on(CUDA, fresh)
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor):
                given[name].copy_(value)
        expected = operator(*wanted.values())
        for result in [results] if isinstance(results, torch.Tensor) else results:
            result.view(torch.uint8).fill_(255)
        graph.replay()
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(bits(given[name]), bits(value)), (position, name)
        if isinstance(results, torch.Tensor):
            assert torch.equal(results, expected)
        else:
            assert all(
                torch.equal(bits(a), bits(b)) for a, b in zip(results, expected, strict=True)
            )


@pytest.mark.parametrize("position", [-1, -4680])
def test_invalid_position_writes_nothing(position):
    ring = replace(LONGLIVE, tokens=1, heads=3, window=160, sink=40)
    for operator, taken in (
        (qk_norm_rope_ring_write, qkv_arguments(ring, torch.bfloat16, 1)),
        (qk_norm_rope_ring_write_static, to_8bit_arguments(ring)),
    ):
        taken["position"] = torch.tensor([position])
        _, after = held.run(operator, taken, CUDA)
        for name in ("key_cache", "value_cache"):
            assert torch.equal(bits(after[name]), bits(taken[name]))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_ring_write_runs_on_the_gpu_of_its_tensors():
    ring = replace(LONGLIVE, tokens=70, heads=3, window=160, sink=40, position=130)
    held.qkv(ring, qkv_arguments(ring, torch.bfloat16, 1), torch.device("cuda", 1))
