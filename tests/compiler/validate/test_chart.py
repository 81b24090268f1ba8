import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from vidc.compiler.validate.charts import block_chart


def test_blocks_without_a_figure_break_the_line_and_fail():
    chart = block_chart([(0, 50.0), (1, 50.0), (2, None), (3, -math.inf), (4, 50.0)], 40.0, [])
    assert [len(line.split()) for line in chart.lines] == [2, 1]
    assert [p.drawn for p in chart.points] == [True, True, False, False, True]
    assert [p.passed for p in chart.points] == [True, True, False, False, True]


def test_a_switch_stands_before_its_block():
    chart = block_chart([(b, 50.0) for b in range(8)], 40.0, [4])
    assert chart.points[3].x < chart.switches[0].at < chart.points[4].x


def test_labels_of_switches_do_not_overlap():
    blocks = [(b, 50.0) for b in range(40)]
    ticks = block_chart(blocks, 40.0, [4, 5, 6, 20, 21, 39]).switches
    assert [tick.label for tick in ticks] == ["prompt switch", "", "", "prompt switch", "",
                                              "prompt switch"]  # fmt: skip
    labeled = [tick.at for tick in ticks if tick.label]
    assert all(b - a >= 130 for a, b in pairwise(labeled))


@given(
    st.lists(
        st.one_of(st.none(), st.just(math.inf), st.just(-math.inf), st.floats(-200, 200)),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.1, 60),
    st.integers(0, 100),
)
@settings(deadline=None)
def test_everything_lies_on_the_drawing(values, threshold, first):
    blocks = list(enumerate(values, start=first))
    chart = block_chart(blocks, threshold, [first, first + 1], hollow={first})
    assert [(p.block, p.value) for p in chart.points] == blocks
    for y in [p.y for p in chart.points] + [t.at for t in (*chart.y_ticks, chart.threshold)]:
        assert chart.top <= y <= chart.bottom
    for x in [p.x for p in chart.points] + [t.at for t in (*chart.x_ticks, *chart.switches)]:
        assert chart.left <= x <= chart.right
    assert len(chart.x_ticks) <= 20
    assert len(chart.y_ticks) <= 9
    for point in chart.points:
        assert point.drawn == (point.value is not None and point.value != -math.inf)
        assert point.passed == (point.value is not None and point.value >= threshold)
        assert point.hollow == (point.block == first)
        if point.passed:
            assert point.y <= chart.threshold.at
        else:
            assert point.y >= chart.threshold.at


def test_equal_values_lie_above_every_other():
    chart = block_chart([(0, 50.0), (1, math.inf), (2, -math.inf)], 40.0, [])
    assert [point.y for point in chart.points[1:]] == [chart.top, chart.bottom]
    assert chart.top < chart.points[0].y < chart.threshold.at
