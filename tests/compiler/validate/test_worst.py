"""Report of the tensors with the largest errors."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vidc.compiler.validate.charts import ERRORS, VALUES, spread
from vidc.compiler.validate.check import worst_json
from vidc.compiler.validate.golden import SAMPLES, Record, sample
from vidc.compiler.validate.play import Played
from vidc.compiler.validate.worst import (
    BINS,
    MOST_OF_COMPONENT,
    MOST_OUTLIERS,
    MOST_TENSORS,
    worst_tensors,
)
from vidc.plugins.signature import Access, Role, Signature, TensorSpec


def signature(**shapes):
    return Signature(
        tuple(TensorSpec(name, shape, "float32", Role.OUTPUT) for name, shape in shapes.items())
    )


def recorded(*calls):
    return Record(list(calls), Played([], {}))


def look_at(actual, expected):
    """The one tensor that is found to err, or None."""
    signatures = {"unet": signature(out=tuple(expected.shape))}
    found = recorded(("unet", {"out": sample(actual)}))
    reference = recorded(("unet", {"out": sample(expected)}))
    worst = worst_tensors(found, reference, signatures)
    return worst[0] if worst else None


values = st.one_of(st.floats(width=32), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
tensors = st.integers(1, 40).flatmap(
    lambda size: st.tuples(
        npst.arrays(np.float32, size, elements=values),
        npst.arrays(np.float32, size, elements=values),
    )
)


@given(tensors)
@settings(deadline=None)
def test_histograms_count_all_finite_values_and_json_is_strict(pair):
    actual, expected = map(torch.from_numpy, pair)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        worst = look_at(actual, expected)
    if worst is None:
        assert torch.equal(actual, expected)
        return
    finite = actual.isfinite()
    assert sum(worst.candidate.counts) == finite.sum()
    assert sum(worst.reference.counts) == expected.isfinite().sum()
    assert sum(worst.error.counts) == (finite & expected.isfinite()).sum()
    assert worst.not_finite == (~finite).sum()
    assert worst.error.low == -worst.error.high < 0
    for outlier in worst.outliers:
        (place,) = outlier.index
        found = (outlier.candidate, outlier.reference)
        assert np.array_equal(found, (actual[place], expected[place]), equal_nan=True)
    sizes = [abs(o.error) if math.isfinite(o.error) else math.inf for o in worst.outliers]
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < len(sizes) <= MOST_OUTLIERS
    text = json.dumps(worst_json([worst]), allow_nan=False)
    assert len(text) < 8000
    drawing = spread(worst)
    for panel, (left, right) in ((drawing.values, VALUES), (drawing.errors, ERRORS)):
        assert all(left <= box.x and box.x + box.width <= right + 0.1 for box in panel.bars)
        assert all(0 <= box.y <= drawing.bottom and box.height > 0 for box in panel.bars)
        assert all(left <= tick.at <= right for tick in panel.ticks)


@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 64, 33), (SAMPLES,), (SAMPLES + 1,)])
def test_an_outlier_is_found_where_it_lies(shape):
    expected = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) % 97
    actual = expected.clone()
    # A value that samples keep: each is the index that it lies at, in the whole tensor.
    kept = sample(torch.arange(math.prod(shape), dtype=torch.float64))[7]
    index = tuple(int(i) for i in np.unravel_index(int(kept), shape))
    actual[index] += 1000
    worst = look_at(actual, expected)
    assert worst.shape == shape
    assert worst.compared == min(SAMPLES, math.prod(shape))
    (outlier,) = worst.outliers
    assert outlier.index == index
    assert (outlier.reference, outlier.candidate) == (expected[index], actual[index])
    assert outlier.error == 1000
    assert (worst.error.counts[-1], worst.error.high) == (1, 1000)


def test_a_state_with_other_axes_is_told_in_the_components_own():
    spec = TensorSpec("ring", (2, 3, 4), "float32", Role.STATE, Access.READ_WRITE, True)
    kept = Signature((spec.rearranged((2, 0, 1)),))
    expected = torch.zeros(2, 3, 4)
    actual = expected.clone()
    actual[1, 2, 3] = 1
    found = worst_tensors(
        recorded(("unet", {"ring": sample(actual)})),
        recorded(("unet", {"ring": sample(expected)})),
        {"unet": kept},
    )
    assert (found[0].shape, found[0].outliers[0].index) == ((2, 3, 4), (1, 2, 3))


def test_the_worst_call_of_each_tensor_comes_first():
    one = torch.ones(4)
    reference = recorded(*[("unet", {"out": one, "other": one})] * 3)
    scales = [(1.1, 1.0), (1.5, 1.2), (1.3, 1.0)]
    found = recorded(*(("unet", {"out": a * one, "other": b * one}) for a, b in scales))
    signatures = {"unet": signature(out=(4,), other=(4,))}
    worst = worst_tensors(found, reference, signatures)
    assert [(each.tensor, each.call) for each in worst] == [("out", 1), ("other", 1)]
    assert worst[0].metrics.relative_l2 == pytest.approx(0.5)


def test_number_of_tensors_is_limited_overall_and_per_component():
    names = [f"c{number}" for number in range(5)]
    tensors = [f"t{number}" for number in range(4)]
    reference = recorded(*((name, {t: torch.ones(2) for t in tensors}) for name in names))
    found = recorded(
        *((name, {t: torch.ones(2) * (i + 2) for t in tensors}) for i, name in enumerate(names))
    )
    signatures = {name: signature(**dict.fromkeys(tensors, (2,))) for name in names}
    worst = worst_tensors(found, reference, signatures)
    components = [each.component for each in worst]
    assert components == ["c4", "c4", "c3", "c3", "c2", "c2"]
    assert (len(worst), MOST_OF_COMPONENT) == (MOST_TENSORS, 2)


def test_equal_tensors_are_left_out():
    record = recorded(("unet", {"out": torch.ones(3)}))
    assert worst_tensors(record, record, {"unet": signature(out=(3,))}) == []


def test_the_tallest_bar_reaches_the_top_and_a_single_value_is_seen():
    expected = torch.zeros(4000)
    actual = expected.clone()
    actual[5] = 1
    drawing = spread(look_at(actual, expected))
    heights = [bar.height for bar in drawing.values.bars]
    assert max(heights) == drawing.bottom - drawing.values.most.at
    corners = drawing.values.outline.split()
    assert len(corners) == 2 * BINS
    raised = {float(corner.split(",")[1]) for corner in corners} - {float(drawing.bottom)}
    assert len(raised) == 2
    assert min(drawing.bottom - up for up in raised) > 5


@pytest.mark.parametrize(("reach", "label"), [(5e-6, "e-6"), (3e7, "e7"), (2.0, "1")])
def test_values_of_any_size_are_labeled_in_few_digits(reach, label):
    worst = look_at(torch.tensor([reach, 0.0]), torch.tensor([-reach, 0.0]))
    labels = [tick.label for tick in spread(worst).values.ticks]
    assert any(label in text for text in labels)
    assert len(labels) >= 3
    assert all(len(text) < 8 for text in labels)
    near = [text for text in labels if float(text) == 0]
    assert len(near) == 1
