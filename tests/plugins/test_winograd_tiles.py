"""Winograd's F(m, 3) is a filter of three taps, exactly, for each m."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from vidc.plugins.ops.winograd_tiles import (
    GROWTH,
    TILES,
    filter_transform,
    input_transform,
    output_transform,
    transforms,
)

tiles = st.sampled_from(TILES)
values = st.fractions(-9, 9, max_denominator=9)


@given(tile=tiles, data=st.data())
def test_the_matrices_are_exact(tile, data):
    """In rational numbers, without rounding."""
    frames = data.draw(st.lists(values, min_size=tile + 2, max_size=tile + 2))
    taps = data.draw(st.lists(values, min_size=3, max_size=3))
    given = transforms(tile)

    def times(matrix, vector):
        return [
            sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix
        ]

    products = [
        a * b for a, b in zip(times(given.inputs, frames), times(given.filters, taps), strict=True)
    ]
    wanted = [sum(frames[i + j] * taps[j] for j in range(3)) for i in range(tile)]
    assert times(given.outputs, products) == wanted


@given(tile=tiles, seed=st.integers(0, 99))
def test_transforms_of_tensors_are_a_convolution(tile, seed):
    generator = torch.Generator().manual_seed(seed)
    frames = torch.randn(tile + 2, 5, dtype=torch.float64, generator=generator)
    taps = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    pairs = zip(input_transform(list(frames)), filter_transform(list(taps), tile), strict=True)
    found = torch.stack(output_transform([d * g for d, g in pairs]))
    wanted = functional.conv1d(frames.T[None], taps.T[:, None], groups=5)[0].T
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tile", TILES)
def test_inputs_grow_by_less_than_the_headroom_of_float16(tile):
    """``validate.headroom`` accepts activations up to a quarter of the range."""
    assert all(sum(map(abs, row)) <= GROWTH for row in transforms(tile).inputs)


def error(tile: int) -> float:
    """Relative L2 of a layer of 96 channels in float16, with inputs as SiLU makes them."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(tile + 2, 200, 864, generator=generator)
    frames = functional.silu(drawn).half().double()
    taps = (torch.randn(3, 864, 32, generator=generator) / 51).half().double()
    inputs = [each.half().double() for each in input_transform(list(frames))]
    filters = [each.half().double() for each in filter_transform(list(taps), tile)]
    products = [(a @ b).half().double() for a, b in zip(inputs, filters, strict=True)]
    found = torch.stack(output_transform(products)).half().double()
    wanted = torch.stack([sum(frames[i + j] @ taps[j] for j in range(3)) for i in range(tile)])
    return ((found - wanted).norm() / wanted.norm()).item()


def test_larger_tiles_have_little_more_error():
    least, *larger = map(error, TILES)
    assert least < 6e-4
    assert max(larger) < 1.8 * least
