import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import winograd_arguments
from torch.nn import functional

from vidc.plugins.ops.norm_silu_winograd import (
    CHANNELS,
    input_transform,
    norm_silu_winograd,
    output_transform,
)


@given(
    batch=st.integers(1, 2), pairs=st.integers(1, 3), channels=st.sampled_from(CHANNELS),
    products=st.booleans(), biased=st.booleans(), residual=st.booleans(),
    deviation=st.sampled_from([0.0, 1e-2, 1.0, 100.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_matches_float64(batch, pairs, channels, products, biased, residual, deviation, seed):
    held.winograd(
        winograd_arguments(
            batch, pairs, 2, 3, channels, products, biased, residual, seed, deviation
        )
    )


@given(seed=st.integers(0, 99))
def test_transforms_make_two_results_of_a_kernel_of_three(seed):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(4, dtype=torch.float64, generator=generator)
    g0, g1, g2 = kernel = torch.randn(3, dtype=torch.float64, generator=generator)
    kernels = (g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2)
    products = [d * g for d, g in zip(input_transform(*frames), kernels, strict=True)]
    wanted = functional.conv1d(frames[None], kernel[None, None])[0]
    torch.testing.assert_close(torch.stack(output_transform(*products)), wanted)


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_passes_opcheck(products, residual):
    taken = winograd_arguments(products=products, residual=residual)
    torch.library.opcheck(norm_silu_winograd, tuple(taken.values()))
