"""The fused operators' kernels, their own source on a CPU, held to what a GPU's are held to.

Outputs hold NaN before, and so does what lies around every tensor.
"""

from dataclasses import replace

import held
import pytest
import torch
from depth import examples
from fused_on_cpu import Kernels, same
from hypothesis import given, settings
from hypothesis import strategies as st
from operators import (
    FLOATS,
    FP8,
    Ring,
    frame_arguments,
    gelu_arguments,
    group_norm_arguments,
    qkv_arguments,
    sampler_arguments,
    winograd_arguments,
)
from operators_8bit import arguments as to_8bit_arguments
from rings import rings

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.norm_silu_winograd import CHANNELS, norm_silu_winograd
from vidc.plugins.ops.qk_norm_rope_ring_write import (
    qk_norm_rope_ring_write,
    qk_norm_rope_ring_write_reference,
)
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.temporal_attention import temporal_attention
from vidc.plugins.ops.winograd_tiles import TILES

CPU = torch.device("cpu")
HALVES = (torch.bfloat16, torch.float16)
sizes = st.sampled_from([1e-2, 1.0, 100.0])
floats = st.sampled_from(FLOATS)
outputs = st.sampled_from([*FLOATS, FP8])
seeds = st.integers(0, 99)


@pytest.fixture(scope="module")
def kernels(built_for_cpu) -> Kernels:
    return Kernels(built_for_cpu)


@settings(max_examples=examples(50))
@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 14), width=st.integers(1, 300), dtype=floats,
    output=outputs, seed=seeds, deviation=st.sampled_from([1e-3, 1.0, 30.0]), mean=st.booleans(),
)  # fmt: skip
def test_gelu_quantize(kernels, batch, tokens, width, dtype, output, seed, deviation, mean):
    centered = mean and output is FP8
    taken = gelu_arguments(batch, tokens, 8 * width, dtype, output, seed, deviation, centered)
    held.gelu(taken, CPU, kernels.operator(gelu_quantize))


@settings(max_examples=examples(60))
@given(
    batch=st.integers(1, 2), tiles=st.integers(1, 3), height=st.integers(1, 3),
    width=st.integers(1, 9), channels=st.sampled_from(CHANNELS), products=st.booleans(),
    biased=st.booleans(), residual=st.booleans(), seed=seeds,
    deviation=st.sampled_from([0.0, 1e-2, 1.0, 100.0]), tile=st.sampled_from(TILES),
    keep_sum=st.booleans(), backwards=st.booleans(),
)  # fmt: skip
def test_norm_silu_winograd(
    kernels, batch, tiles, height, width, channels, products, biased, residual, seed, deviation,
    tile, keep_sum, backwards,
):  # fmt: skip
    taken = winograd_arguments(
        batch, tiles, height, width, channels, products, biased, residual, seed, deviation, tile,
        keep_sum,
    )  # fmt: skip
    held.winograd(taken, CPU, kernels.operator(norm_silu_winograd, backwards))


@settings(max_examples=examples(40))
@given(
    images=st.integers(1, 3), pixels=st.integers(1, 300), dtype=st.sampled_from(HALVES),
    width=st.sampled_from(
        [(32, 32), (64, 32), (320, 32), (24, 3), (40, 1), (2560, 32), (512, 256)]
    ),
    shifted=st.booleans(), silu=st.booleans(), seed=seeds, backwards=st.booleans(),
    spread=st.sampled_from([(1e-2, 0.0), (1.0, 0.0), (100.0, 0.0), (1.0, 30.0)]),
)  # fmt: skip
def test_group_norm_silu(
    kernels, images, pixels, dtype, width, shifted, silu, seed, backwards, spread
):
    channels, groups = width
    taken = group_norm_arguments(
        images,
        max(1, pixels * 32 // channels),
        channels,
        groups,
        dtype,
        shifted,
        silu,
        seed,
        *spread,
    )
    held.group_norm(taken, CPU, kernels.operator(group_norm_silu, backwards))


def test_group_norm_silu_of_many_chunks(kernels):
    """A thousand blocks of one image, and one block of each of a thousand images."""
    operator = kernels.operator(group_norm_silu)
    held.group_norm(group_norm_arguments(1, 40_000, 64, 32), CPU, operator)
    held.group_norm(group_norm_arguments(1100, 3, 64, 32), CPU, operator)


@settings(max_examples=examples(40))
@given(
    batch=st.integers(1, 3), frames=st.integers(1, 32), pixels=st.integers(1, 3),
    heads=st.integers(1, 3), dtype=st.sampled_from(HALVES), seed=seeds, backwards=st.booleans(),
    deviation=st.sampled_from([1e-2, 1.0, 10.0]),
)  # fmt: skip
def test_temporal_attention(
    kernels, batch, frames, pixels, heads, dtype, seed, backwards, deviation
):
    taken = frame_arguments(batch, frames, pixels, heads, dtype, seed, deviation)
    held.frames(taken, CPU, kernels.operator(temporal_attention, backwards))


@settings(max_examples=examples(40))
@given(
    predictions=st.integers(1, 2), frames=st.integers(1, 3), height=st.integers(1, 30),
    width=st.integers(1, 30), step=st.integers(0, 3), fresh=st.booleans(), seed=seeds,
    deviation=st.sampled_from([1e-2, 1.0, 700.0]), backwards=st.booleans(),
)  # fmt: skip
def test_sampler_step(
    kernels, predictions, frames, height, width, step, fresh, seed, deviation, backwards
):
    size = (4, height, width)
    taken = sampler_arguments(predictions, frames, size, 4, step, fresh, seed, deviation)
    held.sampler(taken, CPU, kernels.operator(sampler_step, backwards))


@pytest.mark.parametrize("step", [-1, 4, 2**40])
def test_sampler_step_outside_the_table_writes_nothing(kernels, step):
    taken = sampler_arguments(frames=2, size=(4, 20, 30), step=step)
    _, after = held.run(kernels.operator(sampler_step), taken, CPU)
    for name, value in taken.items():
        assert value is None or torch.equal(after[name], value), name


@settings(max_examples=examples(60))
@given(ring=rings(), dtype=floats, seed=seeds, deviation=sizes, backwards=st.booleans())
def test_ring_write(kernels, ring, dtype, seed, deviation, backwards):
    taken = qkv_arguments(ring, dtype, seed, deviation)
    held.qkv(ring, taken, CPU, kernels.operator(qk_norm_rope_ring_write, backwards))


@settings(max_examples=examples(80))
@given(
    ring=rings(), deviation=sizes, dtype=st.sampled_from(HALVES),
    to=st.sampled_from([FP8, torch.int8]), transposed=st.booleans(), quantized=st.booleans(),
    mean=st.booleans(), seed=seeds, backwards=st.booleans(),
)  # fmt: skip
def test_ring_write_8bit(
    kernels, ring, dtype, to, deviation, transposed, quantized, mean, seed, backwards
):
    taken = to_8bit_arguments(ring, dtype, to, seed, deviation, transposed, quantized, mean)
    held.to_8bit(ring, taken, CPU, kernels.operator(qk_norm_rope_ring_write_static, backwards))


WRAPPING = Ring(batch=2, tokens=70, heads=12, head_dim=128, window=160, sink=40, position=130)
"""LongLive's width; a block that wraps in the middle."""


@pytest.mark.parametrize("position", [0, 7, 39, 40, 119, 159, 160, 2**33])
def test_transposed_value_tiles_start_and_end_at_any_slot(kernels, position):
    ring = replace(WRAPPING, heads=2, position=position)
    operator = kernels.operator(qk_norm_rope_ring_write_static)
    held.to_8bit(ring, to_8bit_arguments(ring), CPU, operator)


@pytest.mark.parametrize(("heads", "head_dim"), [(12, 128), (3, 32), (64, 128)])
def test_rows_of_many_warps(kernels, heads, head_dim):
    ring = replace(WRAPPING, tokens=5, heads=heads, head_dim=head_dim)
    for backwards in (False, True):
        operator = kernels.operator(qk_norm_rope_ring_write, backwards)
        held.qkv(ring, qkv_arguments(ring, torch.bfloat16, 1), CPU, operator)
        operator = kernels.operator(qk_norm_rope_ring_write_static, backwards)
        held.to_8bit(ring, to_8bit_arguments(ring), CPU, operator)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_ring_write_rounds_like_its_reference(kernels, dtype):
    """Sums in another order change the rounding of one value in thousands, not of one in three."""
    ring = replace(WRAPPING, tokens=20)
    taken = qkv_arguments(ring, dtype, 1)
    operator = kernels.operator(qk_norm_rope_ring_write)
    found, after = held.run(operator, taken, CPU)
    wanted = qk_norm_rope_ring_write_reference(*taken.values())
    for a, b in ((found, wanted), (after["key_cache"], taken["key_cache"])):
        assert (a != b).float().mean().item() < 5e-3


@pytest.mark.parametrize("position", [0, 7, 40, 100, 2**40 + 1])
def test_excess_tokens_do_not_write_outside_the_ring(kernels, position):
    """Shared slots have no defined content; fences around the ring must be intact."""
    ring = replace(WRAPPING, batch=1, tokens=150, heads=3, sink=128, position=position)
    kernels.operator(qk_norm_rope_ring_write)(*qkv_arguments(ring, torch.bfloat16, 1).values())
    kernels.operator(qk_norm_rope_ring_write_static)(*to_8bit_arguments(ring).values())


@pytest.mark.parametrize("position", [-1, -4680])
def test_invalid_position_writes_nothing(kernels, position):
    ring = replace(WRAPPING, tokens=1, heads=3)
    for overload, taken in (
        (qk_norm_rope_ring_write, qkv_arguments(ring, torch.bfloat16, 1)),
        (qk_norm_rope_ring_write_static, to_8bit_arguments(ring)),
    ):
        taken["position"] = torch.tensor([position])
        _, after = held.run(kernels.operator(overload), taken, CPU)
        for name in ("key_cache", "value_cache"):
            assert same(after[name], taken[name])
