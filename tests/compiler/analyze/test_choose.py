"""Mixes for budgets, where what groups do together is made up."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.analyze.choose import (
    Budget,
    Scored,
    best_within,
    by_damage,
    choose,
    fastest_within,
)
from vidc.compiler.analyze.groups import LayerGroup
from vidc.plugins.errors import UsageError


def scored(number, psnr_db, saved):
    name = f"blocks.{number}.ffn.net.2"
    return Scored(LayerGroup("ffn down", name, (name,), number), psnr_db, psnr_db, saved)


class Together:
    """Damage adds up, ``factor`` times; remembers what was played."""

    def __init__(self, factor=1.0):
        self.played = []
        self._factor = factor

    def __call__(self, groups):
        self.played.append(list(groups))
        total = sum(each.damage for each in groups)
        if len(groups) > 1:
            total *= self._factor
        return -10 * math.log10(total) if total else math.inf


def some(count, bad=None):
    """Groups alike but for one."""
    return [scored(i, 20.0 if i == bad else 50.0, 1.0) for i in range(count)]


def numbers(groups):
    return sorted(each.group.block for each in groups)


def test_damaging_group_stays_in_high_precision():
    found = fastest_within(30.0, some(10, bad=3), Together())
    assert numbers(found.groups) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert found.psnr_db == pytest.approx(50 - 10 * math.log10(9))


def test_the_worst_comes_first():
    assert by_damage(some(5, bad=2))[0].group.block == 2


@pytest.mark.parametrize("factor", [0.01, 0.5, 1, 3, 40])
def test_mix_is_the_largest_above_floor(factor):
    measure = Together(factor)
    groups = some(60)
    found = fastest_within(38.0, groups, measure)
    assert found.psnr_db >= 38
    assert found.psnr_db == (measure(found.groups) if len(found.groups) > 1 else 50.0)
    one_more = [*found.groups, *(each for each in groups if each not in found.groups)]
    more = one_more[: len(found.groups) + 1]
    assert len(more) == len(found.groups) or measure(more) < 38
    assert len(measure.played) <= 2 + 6 + 4 + 2


groups_ = st.lists(st.tuples(st.floats(10, 80), st.floats(-1, 1)), min_size=1, max_size=12).map(
    lambda rows: [scored(i, db, saved) for i, (db, saved) in enumerate(rows)]
)


@given(groups_, st.floats(5, 90), st.floats(0.1, 10))
def test_chosen_mix_was_measured_above_floor(groups, floor, factor):
    measure = Together(factor)
    try:
        found = fastest_within(floor, groups, measure)
    except UsageError as error:
        code = error.code
    else:
        code = None
    if code is not None:
        saving = [each for each in groups if each.saved > 0]
        assert code == ("VIDC-BUDGET-UNREACHABLE" if saving else "VIDC-SENSITIVITY-GROUPS")
        assert all(each.psnr_db < floor for each in saving)
        return
    assert found.psnr_db >= floor
    assert all(each.saved > 0 for each in found.groups)
    assert len(found.groups) == 1 or list(found.groups) in measure.played


def test_later_groups_are_tried_after_damaging_one():
    groups = [scored(0, 45.0, 4.0), scored(1, 41.0, 9.0), scored(2, 47.0, 1.0)]
    found = fastest_within(40.0, groups, Together())
    assert numbers(found.groups) == [0, 2]
    assert found.psnr_db == Together()(found.groups)


def test_unreachable_floor_names_nearest():
    with pytest.raises(UsageError) as caught:
        fastest_within(60.0, [scored(0, 40.0, 1), scored(1, 47.77, 1)], Together())
    assert caught.value.code == "VIDC-BUDGET-UNREACHABLE"
    assert (
        "blocks.1.ffn.net.2 is the least damaging group that saves time, with 47.8 dB"
        in caught.value.message
    )
    assert "ask for psnr=47.7 or less" in caught.value.hint
    assert fastest_within(47.7, [scored(0, 40.0, 1), scored(1, 47.77, 1)], Together())


def test_no_floor_is_suggested_for_non_finite_damage():
    with pytest.raises(UsageError) as caught:
        fastest_within(60.0, [scored(0, -math.inf, 1)], Together())
    assert "nan" not in caught.value.hint


def test_a_time_takes_the_least_damage_that_reaches_it():
    groups = [scored(0, 20.0, 2), scored(1, 50.0, 1), scored(2, 49.0, 1), scored(3, 48.0, 1)]
    found = best_within(0.8, groups, 10.0, Together())
    assert numbers(found.groups) == [1, 2]
    assert numbers(best_within(0.7, groups, 10.0, Together()).groups) == [1, 2, 3]
    # The bad one alone saves more than was missing: what it makes superfluous is put back.
    assert numbers(best_within(0.65, groups, 10.0, Together()).groups) == [0, 1, 2]


def test_unreachable_time_names_nearest():
    groups = [scored(0, 20.0, 2.001), scored(1, 50.0, 1)]
    with pytest.raises(UsageError) as caught:
        best_within(0.5, groups, 10.0, Together())
    assert caught.value.code == "VIDC-BUDGET-UNREACHABLE"
    assert "ask for time=0.7 or more" in caught.value.hint
    assert len(best_within(0.7, groups, 10.0, Together()).groups) == 2


@given(groups_, st.floats(0.05, 0.95))
def test_time_is_reached_or_rejected(groups, ratio):
    seconds = 5.0
    try:
        found = choose(Budget("time", ratio), groups, seconds, Together())
    except UsageError:
        assert sum(max(each.saved, 0) for each in groups) <= seconds * (1 - ratio) * (1 + 1e-9)
        return
    saved = sum(each.saved for each in found.groups)
    assert saved >= seconds * (1 - ratio) * (1 - 1e-9)
    # None of them is superfluous.
    assert all(saved - each.saved < seconds * (1 - ratio) * (1 + 1e-9) for each in found.groups)


@pytest.mark.parametrize("budget", [Budget("psnr", 30.0), Budget("time", 0.9)])
def test_groups_without_savings_are_not_chosen(budget):
    with pytest.raises(UsageError, match="VIDC-SENSITIVITY-GROUPS"):
        choose(budget, [scored(0, 50.0, 0.0), scored(1, 50.0, -1.0)], 10.0, Together())
