import held
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import winograd_arguments

from vidc.plugins.ops.norm_silu_winograd import CHANNELS, norm_silu_winograd
from vidc.plugins.ops.winograd_tiles import TILES


@given(
    batch=st.integers(1, 2), tiles=st.integers(1, 3), channels=st.sampled_from(CHANNELS),
    products=st.booleans(), biased=st.booleans(), residual=st.booleans(),
    deviation=st.sampled_from([0.0, 1e-2, 1.0, 100.0]), tile=st.sampled_from(TILES),
    keep_sum=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_matches_float64(
    batch, tiles, channels, products, biased, residual, deviation, tile, keep_sum, seed
):
    held.winograd(
        winograd_arguments(
            batch,
            tiles,
            2,
            3,
            channels,
            products,
            biased,
            residual,
            seed,
            deviation,
            tile,
            keep_sum,
        )
    )


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_passes_opcheck(products, residual):
    taken = winograd_arguments(products=products, residual=residual)
    torch.library.opcheck(norm_silu_winograd, tuple(taken.values()))
