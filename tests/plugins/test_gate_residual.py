import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, gate_arguments

from vidc.plugins.gate_residual import gate_residual


@given(
    batch=st.integers(1, 3), frames=st.integers(1, 4), each=st.integers(1, 5),
    width=st.integers(1, 9).map(lambda n: 8 * n), size=st.sampled_from([1e-4, 1.0, 1e3]),
    dtypes=st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS)), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_branch_is_gated_by_latent_frame(batch, frames, each, width, dtypes, seed, size):
    held.gate(gate_arguments(batch, frames, each, width, dtypes, seed, size))


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_an_operator_as_torch_wants_them(dtype):
    torch.library.opcheck(gate_residual, tuple(gate_arguments(2, dtypes=(dtype, dtype)).values()))
