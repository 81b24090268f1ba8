from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.report.axes import around

values = st.floats(-1e9, 1e9)


@given(values, values, st.integers(4, 12), st.booleans())
def test_axis_contains_its_values(a, b, most, upwards):
    low, high = sorted((a, b))
    start, end = (300, 20) if upwards else (20, 300)
    axis = around(low, high, start, end)
    assert axis.low < low <= high < axis.high
    for value in (low, high):
        assert 20 <= axis.at(value) <= 300
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most
    assert all(20 <= tick.at <= 300 for tick in ticks)
    assert len({tick.label for tick in ticks}) == len(ticks)


@given(values, st.floats(1e-3, 1e9), st.booleans())
def test_ticks_are_even_and_say_where_they_are(low, size, upwards):
    start, end = (300, 20) if upwards else (20, 300)
    axis = around(low, low + size, start, end)
    ticks = axis.ticks()
    for tick in ticks:
        assert abs(axis.at(float(tick.label)) - tick.at) <= 0.2
    steps = [after.at - before.at for before, after in pairwise(ticks)]
    assert all(abs(step - steps[0]) <= 0.3 for step in steps)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 400, ["0", "100", "200", "300", "400"]),
        (0.31, 0.35, ["0.31", "0.32", "0.33", "0.34", "0.35"]),
        (-3, 2, ["-3", "-2", "-1", "0", "1", "2"]),
    ],
)
def test_steps_are_round(low, high, labels):
    assert [tick.label for tick in around(low, high, 0, 100).ticks()] == labels


def test_a_value_beyond_the_axis_lies_at_its_end():
    axis = around(1, 2, 0, 100)
    assert (axis.at(-9), axis.at(9)) == (0, 100)
