"""``group_norm_silu`` beside a formula in float64."""

import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import group_norm_arguments

from vidc.plugins.ops.group_norm_silu import group_norm_silu


@given(
    images=st.integers(1, 3), pixels=st.integers(1, 40),
    width=st.sampled_from([(32, 32), (320, 32), (24, 3), (40, 1)]),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]), shifted=st.booleans(),
    silu=st.booleans(), spread=st.sampled_from([(1e-2, 0.0), (1.0, 0.0), (1.0, 30.0)]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_matches_float64(images, pixels, width, dtype, shifted, silu, spread, seed):
    taken = group_norm_arguments(images, pixels, *width, dtype, shifted, silu, seed, *spread)
    held.group_norm(taken)


@pytest.mark.parametrize("shifted", [False, True])
def test_passes_opcheck(shifted):
    taken = group_norm_arguments(shifted=shifted)
    torch.library.opcheck(group_norm_silu, tuple(taken.values()))
