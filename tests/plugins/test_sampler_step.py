"""``sampler_step`` beside diffusers' scheduler and a formula in float64."""

import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import sampler_arguments

from vidc.plugins.ops.sampler_step import sampler_step


@given(
    predictions=st.integers(1, 2), frames=st.integers(1, 4), width=st.integers(1, 5),
    steps=st.integers(1, 5), step=st.integers(0, 4), fresh=st.booleans(),
    deviation=st.sampled_from([1e-2, 1.0, 700.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_matches_float64(predictions, frames, width, steps, step, fresh, deviation, seed):
    size = (4, 2, width)
    taken = sampler_arguments(
        predictions, frames, size, steps, step % steps, fresh, seed, deviation
    )
    held.sampler(taken)


@pytest.mark.parametrize(("predictions", "fresh"), [(1, True), (2, False)])
def test_passes_opcheck(predictions, fresh):
    taken = sampler_arguments(predictions, fresh=fresh)
    torch.library.opcheck(sampler_step, tuple(taken.values()))
