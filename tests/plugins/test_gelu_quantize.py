import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, FP8, gelu_arguments

from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.gelu_quantize import gelu_quantize


@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 4), width=st.integers(1, 4).map(lambda n: 8 * n),
    dtype=st.sampled_from(FLOATS), output=st.sampled_from((*FLOATS, FP8)),
    deviation=st.sampled_from([1e-3, 1.0, 30.0]), seed=st.integers(0, 99), less=st.booleans(),
)  # fmt: skip
def test_matches_float64_tanh_gelu(batch, tokens, width, dtype, output, deviation, seed, less):
    centered = less and output is FP8
    held.gelu(gelu_arguments(batch, tokens, width, dtype, output, seed, deviation, centered))


@pytest.mark.parametrize("dtype", FLOATS)
def test_saturates_at_the_ends_of_the_range(dtype):
    x = torch.tensor([-60000.0, -100, -10, -0.0, 0, 10, 100, 60000], dtype=dtype)[None, None]
    assert torch.equal(gelu_quantize(x, dtype_name(dtype)), x.clamp(min=0))


def test_rejects_mean_without_scale():
    with pytest.raises(UsageError, match="output_mean: expected none for bfloat16, found a tensor"):
        gelu_quantize(**gelu_arguments() | {"output_mean": torch.zeros(16)})


@pytest.mark.parametrize(
    ("output", "centered"), [(torch.float16, False), (FP8, False), (FP8, True)]
)
def test_passes_opcheck(output, centered):
    taken = gelu_arguments(output=output, centered=centered)
    torch.library.opcheck(gelu_quantize, tuple(taken.values()))
