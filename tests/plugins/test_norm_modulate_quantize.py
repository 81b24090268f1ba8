import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, FP8, norm_arguments, per_token, rounded_once

from vidc.plugins.norm_modulate_quantize import norm_modulate_quantize


@given(
    batch=st.integers(1, 3), frames=st.integers(1, 4), each=st.integers(1, 4),
    width=st.integers(2, 9).map(lambda n: 8 * n), dtype=st.sampled_from(FLOATS),
    output=st.sampled_from((*FLOATS, FP8)), seed=st.integers(0, 99),
    deviation=st.sampled_from([1e-3, 1.0, 100.0]), mean=st.sampled_from([0.0, 1.0, -50.0]),
)  # fmt: skip
def test_a_modulated_layer_norm_rounded_once(
    batch, frames, each, width, dtype, output, seed, deviation, mean
):
    held.norm(norm_arguments(batch, frames, each, width, dtype, output, seed, deviation, mean))


def test_what_is_too_large_for_fp8_becomes_its_largest():
    taken = norm_arguments(output=FP8) | {"output_scale": torch.tensor([1e-4])}
    found = norm_modulate_quantize(**taken).float()
    assert found.abs().max().item() == 448
    assert torch.equal(found.sign(), held.normed(taken).float().sign())


def test_rows_of_one_value_are_no_division_by_zero():
    taken = norm_arguments()
    taken["x"] = torch.full_like(taken["x"], 7.0)
    rounded_once(norm_modulate_quantize(**taken), per_token(taken["shift"], 6))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("output", [torch.bfloat16, FP8])
def test_it_is_an_operator_as_torch_wants_them(dtype, output):
    taken = norm_arguments(2, dtype=dtype, output=output)
    torch.library.opcheck(norm_modulate_quantize, tuple(taken.values()))
