import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import EPS, FLOATS, FP8, norm_arguments, per_token, rounded_once

from vidc.plugins.norm_modulate_quantize import norm_modulate_quantize


def formula(x, shift, scale):
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt()
    tokens = x.shape[1]
    return normed * (1 + per_token(scale, tokens)) + per_token(shift, tokens)


@given(
    batch=st.integers(1, 3), frames=st.integers(1, 4), each=st.integers(1, 4),
    width=st.integers(2, 9).map(lambda n: 8 * n), dtype=st.sampled_from(FLOATS),
    output=st.sampled_from((*FLOATS, FP8)), seed=st.integers(0, 99),
    deviation=st.sampled_from([1e-3, 1.0, 100.0]), mean=st.sampled_from([0.0, 1.0, -50.0]),
)  # fmt: skip
def test_a_modulated_layer_norm_rounded_once(
    batch, frames, each, width, dtype, output, seed, deviation, mean
):
    taken = norm_arguments(batch, frames, each, width, dtype, output, seed, deviation, mean)
    wanted = formula(taken["x"], taken["shift"], taken["scale"])
    found = norm_modulate_quantize(**taken)
    assert found.dtype == output
    # Float32 has 7 digits of x, of which the mean takes some away.
    spread = taken["x"].double().std(-1).min().item() + EPS**0.5
    slack = 2e-6 * (1 + taken["x"].abs().max().item() / spread) * 5
    if output is FP8:
        scale = taken["output_scale"].double()
        wanted, slack = (wanted / scale).clamp(-448, 448), slack / scale.item()
    rounded_once(found, wanted, slack)


def test_what_is_too_large_for_fp8_becomes_its_largest():
    taken = norm_arguments(output=FP8) | {"output_scale": torch.tensor([1e-4])}
    found = norm_modulate_quantize(**taken).float()
    wanted = formula(taken["x"], taken["shift"], taken["scale"])
    assert found.abs().max().item() == 448
    assert torch.equal(found.sign(), wanted.float().sign())


def test_rows_of_one_value_are_no_division_by_zero():
    taken = norm_arguments()
    taken["x"] = torch.full_like(taken["x"], 7.0)
    rounded_once(norm_modulate_quantize(**taken), per_token(taken["shift"], 6))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("output", [torch.bfloat16, FP8])
def test_it_is_an_operator_as_torch_wants_them(dtype, output):
    taken = norm_arguments(2, dtype=dtype, output=output)
    torch.library.opcheck(norm_modulate_quantize, (), taken)
