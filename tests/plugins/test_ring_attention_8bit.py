import math

import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FP8, Ring
from operators_8bit import arguments as to_8bit_arguments
from operators_8bit import attention_arguments

from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring import ring_attention
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit

FORMATS = (FP8, torch.int8)
NOT_A_NUMBER = 0x7F
LARGEST_NEGATIVE = 0xFE


@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 5), heads=st.integers(1, 3),
    head_dim=st.sampled_from([64, 128]), slots=st.integers(1, 48), more=st.integers(0, 2),
    valid=st.integers(-1, 50), of=st.sampled_from(FORMATS), seed=st.integers(0, 99),
    output=st.sampled_from([torch.bfloat16, torch.float16, FP8]),
)  # fmt: skip
def test_matches_attention_of_dequantized_tensors(
    batch, tokens, heads, head_dim, slots, more, valid, of, seed, output
):
    stored = 16 * (math.ceil(slots / 16) + more)
    sizes = (batch, tokens, heads, head_dim, slots, stored)
    held.attention(attention_arguments(*sizes, valid, of, output, seed))


@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.parametrize("valid", [1, 15, 16, 37])
def test_invalid_slots_do_not_affect_the_output(of, valid):
    taken = attention_arguments(valid=valid, of=of)
    wanted = ring_attention_8bit(*taken.values())
    taken["key_cache"].view(torch.uint8)[:, valid:] = NOT_A_NUMBER
    # Places, not slots: within a group of 16 they are mixed.
    taken["value_cache"].view(torch.uint8)[..., -(-valid // 16) * 16 :] = LARGEST_NEGATIVE
    assert torch.equal(ring_attention_8bit(*taken.values()), wanted)


@pytest.mark.parametrize("of", FORMATS)
@pytest.mark.parametrize("position", [0, 30, 150, 1000])
def test_attends_to_the_ring_of_the_ring_write(of, position):
    """As near to the operators of 16 bits as numbers of 8 bits can be."""
    ring = Ring(batch=2, tokens=50, heads=3, head_dim=64, window=160, sink=32, position=0)
    wide = to_8bit_arguments(ring, to=of, mean=False)
    largest = held.LARGEST[of]
    # Rotated keys are normalized: four deviations; values have a deviation of one.
    wide["key_scale"][:] = 6 / largest
    wide["value_scale"][:] = 4.5 / largest
    of_8_bits = {"key_scale", "value_scale", "key_mean", "value_transposed", "quantize_query"}
    narrow = {name: value for name, value in wide.items() if name not in of_8_bits}
    for name in ("key_cache", "value_cache"):
        narrow[name] = torch.zeros(2, 160, 3, 64, dtype=torch.bfloat16)
    results = []
    for first in range(0, position + 1, 50):
        generator = torch.Generator().manual_seed(first)
        qkv = torch.randn(wide["qkv"].shape, generator=generator).bfloat16()
        at = {"qkv": qkv, "position": torch.tensor([first])}
        query, scale = qk_norm_rope_ring_write_static(*(wide | at).values())
        wanted_query = qk_norm_rope_ring_write(*(narrow | at).values())
        valid = torch.tensor([min(first + 50, 160)])
        values = wide["value_scale"][:, None].expand(3, 64).contiguous()
        found = ring_attention_8bit(
            query, scale, wide["key_cache"], wide["value_cache"], wide["key_scale"], values,
            torch.zeros(3, 64), valid, "bfloat16",
        )  # fmt: skip
        wanted = ring_attention(wanted_query, narrow["key_cache"], narrow["value_cache"], valid)
        results.append(((found - wanted).norm() / wanted.norm()).item())
    assert max(results) < (0.05 if of is FP8 else 0.03), results


@pytest.mark.parametrize("of", FORMATS)
def test_passes_opcheck(of):
    taken = attention_arguments(of=of)
    checks = ["test_autograd_registration", "test_faketensor"]
    if of is torch.int8:  # PyTorch cannot compare tensors of FP8 on a CPU.
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(ring_attention_8bit, tuple(taken.values()), test_utils=checks)
