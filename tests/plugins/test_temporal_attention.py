"""``temporal_attention`` beside a formula in float64."""

import held
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import frame_arguments

from vidc.plugins.ops.temporal_attention import temporal_attention


@given(
    batch=st.integers(1, 2), frames=st.integers(1, 32), pixels=st.integers(1, 3),
    heads=st.integers(1, 2), dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    deviation=st.sampled_from([1e-2, 1.0, 10.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_matches_float64(batch, frames, pixels, heads, dtype, deviation, seed):
    held.frames(frame_arguments(batch, frames, pixels, heads, dtype, seed, deviation))


def test_passes_opcheck():
    torch.library.opcheck(temporal_attention, tuple(frame_arguments().values()))
