"""The 8-bit ring's layout, and that it is the one in which no thread needs another's weights."""

import pytest
import torch
from attention_8bit.ring import RingScales, quantize_queries, quantize_ring, transpose_values
from hypothesis import given
from hypothesis import strategies as st

from vidc.plugins.ops.ring_attention_8bit import attend, restore_values
from vidc.plugins.transposed_values import ORDER

LANES = 32
WARPS = 4
KEYS = 128
ROWS = 64
DEPTH = 32


def plain_scales(heads, head_dim):
    return RingScales(
        smooth=torch.ones(heads, head_dim),
        key_mean=torch.zeros(heads, head_dim),
        key_scale=torch.full((heads,), 0.03),
        value_mean=torch.zeros(heads, head_dim),
        value_scale=torch.full((heads, head_dim), 0.03),
    )


def attended(query, query_scale, ring, scales, length):
    value = restore_values(ring.value, ring.key.shape[1])
    return attend(
        query, query_scale, ring.key[:, :length], value[:, :length], scales.key_scale,
        scales.value_scale, scales.value_mean, torch.float64,
    )  # fmt: skip


@given(slots=st.integers(1, 70), seed=st.integers(0, 100))
def test_values_survive_transposition(slots, seed):
    generator = torch.Generator().manual_seed(seed)
    value = torch.randint(-127, 128, (2, slots, 3, 8), dtype=torch.int8, generator=generator)
    transposed = transpose_values(value)
    assert transposed.shape == (2, 3, 8, 128)
    assert transposed.is_contiguous()
    assert torch.equal(restore_values(transposed, slots), value)


def test_order_of_keys_matches_the_header():
    value = torch.arange(32, dtype=torch.int8)[None, :, None, None]
    row = transpose_values(value)[0, 0, 0]
    assert row[:16].tolist() == list(ORDER)
    assert row[16:32].tolist() == [16 + key for key in ORDER]
    assert row[32:].tolist() == [0] * 96


def sum_place(warp, lane, index):
    """Row and column of a thread's ``index``-th sum, as PTX lays out 64 x N in 32 bits."""
    row = 16 * warp + lane // 4 + 8 * (index // 2 % 2)
    return row, 8 * (index // 4) + 2 * (lane % 4) + index % 2


def operand_place(warp, lane, register, byte):
    """Row and depth of a byte of a thread's left operand, as PTX lays out 64 x 32 of 8 bits."""
    row = 16 * warp + lane // 4 + 8 * (register % 2)
    return row, 16 * (register // 2) + 4 * (lane % 4) + byte


def packed(sums):
    """The kernel's ``pack_weights``: from a thread's 64 weights to four times four registers."""
    rounded = [(sums[2 * i], sums[2 * i + 1]) for i in range(KEYS // 4)]
    registers = []
    for i in range(KEYS // 8):
        first = i // 2 * 4 + i % 2
        registers.append((*rounded[first], *rounded[first + 2]))
    return [registers[4 * k : 4 * k + 4] for k in range(KEYS // DEPTH)]


def test_thread_has_the_weights_of_its_operand():
    weights = torch.randint(0, 256, (ROWS, KEYS))
    value = torch.randint(-127, 128, (1, KEYS, 1, 64), dtype=torch.int8)
    operand = torch.zeros(KEYS // DEPTH, ROWS, DEPTH, dtype=torch.long)
    for warp in range(WARPS):
        for lane in range(LANES):
            own = [int(weights[sum_place(warp, lane, i)]) for i in range(KEYS // 2)]
            for k, registers in enumerate(packed(own)):
                for register, four in enumerate(registers):
                    for byte, weight in enumerate(four):
                        operand[k][operand_place(warp, lane, register, byte)] = weight
    stored = transpose_values(value)[0, 0].long()
    product = sum(
        operand[k] @ stored[:, DEPTH * k : DEPTH * (k + 1)].T for k in range(KEYS // DEPTH)
    )
    assert torch.equal(product, weights @ value[0, :, 0].long())


def test_smoothing_and_means_do_not_change_attention():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, 2, 8) for n in (5, 40, 40))
    scales = RingScales(
        smooth=torch.rand(2, 4).repeat_interleave(2, dim=1) + 0.5,
        key_mean=torch.randn(2, 8),
        key_scale=torch.full((2,), 0.06),
        value_mean=torch.randn(2, 8),
        value_scale=torch.full((2, 8), 0.05),
    )
    integers, query_scale = quantize_queries(query, scales)
    assert integers.abs().amax() == 127
    ring = quantize_ring(key, value, scales)
    found = attended(integers, query_scale, ring, scales, 40)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (query, key, value))
    ).transpose(1, 2)
    assert (found - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize("length", [1, 17, 40])
def test_invalid_slots_are_ignored(length):
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 2, 8) for n in (5, 40, 40))
    scales = plain_scales(2, 8)
    integers, query_scale = quantize_queries(query, scales)
    whole = quantize_ring(key, value, scales)
    short = quantize_ring(key[:, :length], value[:, :length], scales)
    found = attended(integers, query_scale, whole, scales, length)
    wanted = attended(integers, query_scale, short, scales, length)
    torch.testing.assert_close(found, wanted)


def test_zero_query_has_a_positive_scale():
    integers, scale = quantize_queries(torch.zeros(1, 1, 1, 8), plain_scales(1, 8))
    assert integers.eq(0).all()
    assert scale.isfinite().all()
