import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, FP8, draw, rounded_once

from vidc.plugins.gelu_quantize import gelu_quantize


def formula(x):
    x = x.double()
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 4), width=st.integers(1, 4).map(lambda n: 8 * n),
    dtype=st.sampled_from(FLOATS), output=st.sampled_from((*FLOATS, FP8)),
    deviation=st.sampled_from([1e-3, 1.0, 30.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_tanh_gelu_rounded_once(batch, tokens, width, dtype, output, deviation, seed):
    x = draw(seed)(batch, tokens, width, dtype=dtype, deviation=deviation)
    scale = torch.tensor([0.02]) if output is FP8 else None
    wanted, slack = formula(x), 1e-6
    if scale is not None:
        wanted, slack = (wanted / scale.double()).clamp(-448, 448), slack / scale.item()
    found = gelu_quantize(x, output, scale)
    assert found.dtype == output
    rounded_once(found, wanted, slack)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_ends_of_the_range(dtype):
    x = torch.tensor([-60000.0, -100, -10, -0.0, 0, 10, 100, 60000], dtype=dtype)[None, None]
    assert torch.equal(gelu_quantize(x, dtype), x.clamp(min=0))


@pytest.mark.parametrize("output", [torch.float16, FP8])
def test_it_is_an_operator_as_torch_wants_them(output):
    scale = torch.ones(1) if output is FP8 else None
    torch.library.opcheck(gelu_quantize, (draw(1)(2, 3, 8), output, scale))
