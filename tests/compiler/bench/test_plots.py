from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.bench.plots import MOST_DOTS, timeline

samples = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=150)
streams = st.dictionaries(st.sampled_from(["vidc", "eager", "compile"]), samples, min_size=1)


def corners(polyline):
    return [tuple(map(float, point.split(","))) for point in polyline.split()]


@given(streams)
def test_every_sample_is_a_point_of_the_timeline(found):
    chart = timeline(found)
    assert [series.name for series in chart.series] == list(found)
    for series in chart.series:
        points = corners(series.points)
        few = max(len(own) for own in found.values()) <= MOST_DOTS
        assert series.dots.count("M") == (len(points) if few else 0)
        assert len(points) == len(found[series.name])
        assert all(a[0] < b[0] for a, b in pairwise(points))
        for x, y in points:
            assert chart.left <= x <= chart.right
            assert chart.top <= y <= chart.bottom
    assert all(chart.left <= tick.at <= chart.right for tick in chart.x_ticks)
    assert all(chart.top <= tick.at <= chart.bottom for tick in chart.y_ticks)
    assert 1 <= len(chart.x_ticks) <= 10


@given(samples)
def test_longer_samples_lie_higher(values):
    (series,) = timeline({"vidc": values}).series
    heights = [y for _, y in corners(series.points)]
    order = np.argsort(values)
    assert all(heights[a] >= heights[b] for a, b in pairwise(order))


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (1, ["1"]),
        (3, ["1", "2", "3"]),
        (30, ["5", "10", "15", "20", "25", "30"]),
        (64, ["10", "20", "30", "40", "50", "60"]),
    ],
)
def test_samples_are_counted_in_round_steps(most, labels):
    assert [tick.label for tick in timeline({"vidc": [1.0] * most}).x_ticks] == labels
