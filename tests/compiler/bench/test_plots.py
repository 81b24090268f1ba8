from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.bench.plots import MOST_DOTS, histogram, timeline
from vidc.compiler.bench.statistics import Summary

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


@given(samples)
def test_a_histogram_lies_on_its_drawing(values):
    summary = Summary.of(values)
    chart = histogram("vidc", values, summary)
    boxes = [*chart.bars, *([chart.interval] if chart.interval else [])]
    for box in boxes:
        assert chart.left <= box.x <= box.x + box.width <= chart.right + 0.2
        assert 0 <= box.y <= box.y + box.height <= chart.bottom + 0.2
    assert chart.left <= chart.median <= chart.right
    assert chart.most.at == 16
    assert 1 <= int(chart.most.label) <= len(values)
    assert int(chart.most.label) * len(chart.bars) >= len(values)
    # The tallest bar fills the drawing.
    assert max(box.height for box in chart.bars) == pytest.approx(chart.bottom - 16, abs=0.2)
    assert (chart.interval is None) == (len(values) < 6)


def test_a_histogram_has_fewer_bars_than_samples():
    values = list(np.random.default_rng(0).normal(100, 1, 30))
    assert len(histogram("vidc", values, Summary.of(values)).bars) <= 11


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
