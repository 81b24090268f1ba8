"""Ranges of several rollouts are those of all their tensors together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.quantize.ranges import finished, merged

numbers = st.integers(-(2**20), 2**20).map(lambda n: n / 64)
"""Sums of these are exact in float64, in any order."""
rows = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5)
"""Values of two channels in one rollout."""


def ranges(seen, group=0, groups=2):
    x = torch.tensor(seen, dtype=torch.float32)
    amax = torch.zeros(groups, 2)
    amax[group] = x.abs().amax(0)
    return {
        "amax/a": amax,
        "low/a": x.amin(0),
        "high/a": x.amax(0),
        "sum/a": x.double().sum(0),
        "count/a": torch.tensor(len(seen)),
    }


def together(parts):
    total = {}
    for part in parts:
        total = merged(total, part)
    return total


def same(one, two):
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@given(st.lists(rows, min_size=1, max_size=5))
def test_parts_are_the_whole(parts):
    same(together(map(ranges, parts)), ranges([row for part in parts for row in part]))


@given(st.lists(rows, min_size=1, max_size=5), st.randoms())
def test_the_order_does_not_matter(parts, random):
    shuffled = random.sample(parts, len(parts))
    same(together(map(ranges, parts)), together(map(ranges, shuffled)))


@given(rows, rows, rows)
def test_how_they_are_bracketed_does_not_matter(one, two, three):
    a, b, c = map(ranges, (one, two, three))
    same(merged(merged(a, b), c), merged(a, merged(b, c)))


@given(rows)
def test_ends_seen_twice_are_the_same_ends(seen):
    once = ranges(seen)
    twice = merged(once, once)
    for name in ("amax/a", "low/a", "high/a"):
        assert torch.equal(once[name], twice[name])


@given(rows, rows)
def test_groups_stay_apart_and_their_maximum_is_that_of_all(one, two):
    both = merged(ranges(one, 0), ranges(two, 1))["amax/a"]
    assert torch.equal(both[0], ranges(one)["amax/a"][0])
    assert torch.equal(both[1], ranges(two)["amax/a"][0])
    assert torch.equal(both.amax(0), ranges([*one, *two])["amax/a"][0])


@given(rows)
def test_sums_become_means(seen):
    found = finished(ranges(seen))
    assert found.keys() == {"a", "a.low", "a.high", "a.mean"}
    assert all(value.dtype == torch.float32 for value in found.values())
    expected = torch.tensor(seen, dtype=torch.float64).mean(0)
    torch.testing.assert_close(found["a.mean"].double(), expected, rtol=1e-6, atol=1e-12)


def test_a_mean_over_nothing_is_none():
    with pytest.raises(ValueError, match="a was never collected"):
        finished({"sum/a": torch.zeros(2), "count/a": torch.tensor(0)})
