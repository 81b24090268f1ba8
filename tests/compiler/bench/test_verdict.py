import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from vidc.compiler.bench.statistics import LEAST_FOR_INTERVAL, Summary, cliffs_delta
from vidc.compiler.bench.verdict import LEAST_DELTA, LEAST_RATIO, Outcome, judge

OPPOSITE = {
    Outcome.FASTER: Outcome.SLOWER,
    Outcome.SLOWER: Outcome.FASTER,
    Outcome.SAME: Outcome.SAME,
    Outcome.CANNOT_TELL: Outcome.CANNOT_TELL,
}
samples = st.lists(st.floats(1.0, 2.0), min_size=LEAST_FOR_INTERVAL, max_size=30)


def drawn(center, spread=0.01, n=100, seed=0):
    return list(center * np.random.default_rng(seed).lognormal(sigma=spread, size=n))


@given(samples, samples)
def test_the_other_way_round_the_outcome_is_the_opposite(ours, theirs):
    verdict, mirrored = judge(ours, theirs), judge(theirs, ours)
    assert mirrored.outcome is OPPOSITE[verdict.outcome]
    assert mirrored.speedup == pytest.approx(1 / verdict.speedup)
    assert mirrored.delta == -verdict.delta
    if sorted(ours) != sorted(theirs):
        low, high = verdict.speedup_ci95
        assert mirrored.speedup_ci95 == pytest.approx((1 / high, 1 / low))


@given(samples, samples, st.floats(0.5, 3.0))
def test_faster_is_said_where_all_three_hold_and_nowhere_else(ours, theirs, factor):
    theirs = [factor * value for value in theirs]
    verdict, own, other = judge(ours, theirs), Summary.of(ours), Summary.of(theirs)
    ratio = other.median / own.median
    holds = (
        own.ci95[1] < other.ci95[0],
        cliffs_delta(ours, theirs) <= -LEAST_DELTA,
        ratio >= LEAST_RATIO,
    )
    assume(abs(ratio - LEAST_RATIO) > 1e-9)
    assert (verdict.outcome is Outcome.FASTER) == all(holds)
    assert verdict.reasons


@given(samples, samples)
def test_same_is_said_only_where_the_ratio_is_known_to_be_near_one(ours, theirs):
    verdict = judge(ours, theirs)
    low, high = verdict.speedup_ci95
    assert low <= verdict.speedup * (1 + 1e-9)
    assert verdict.speedup <= high * (1 + 1e-9)
    if verdict.outcome is Outcome.SAME:
        assert 1 / LEAST_RATIO - 1e-9 <= low <= high <= LEAST_RATIO + 1e-9
    if verdict.outcome is Outcome.CANNOT_TELL:
        assert low < 1 / LEAST_RATIO + 1e-9 or high > LEAST_RATIO - 1e-9


@given(samples)
def test_a_set_is_never_faster_than_itself(ours):
    assert judge(ours, ours).outcome in (Outcome.SAME, Outcome.CANNOT_TELL)


@given(samples, samples, st.sampled_from([2.0**-20, 0.5, 1024.0]))
@example([1.0] * 6, [1.0] * 5 + [1.2], 2.0**-20)  # An end of the interval is the bound itself.
def test_the_unit_does_not_matter(ours, theirs, factor):
    verdict = judge(ours, theirs)
    scaled = judge([factor * a for a in ours], [factor * b for b in theirs])
    assert (scaled.outcome, scaled.speedup) == (verdict.outcome, verdict.speedup)


@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (drawn(270), drawn(330, seed=1), Outcome.FASTER),
        (drawn(330), drawn(270, seed=1), Outcome.SLOWER),
        (drawn(300), drawn(303, seed=1), Outcome.SAME),
        # Apart beyond doubt, yet by less than what counts as faster: the same.
        (drawn(300, 0.001), drawn(320, 0.001, seed=1), Outcome.SAME),
        # The ratio's interval reaches across the limit.
        (drawn(300, 0.3), drawn(320, 0.3, seed=1), Outcome.CANNOT_TELL),
        (drawn(300, 0.01, n=5), drawn(600, 0.01, n=5, seed=1), Outcome.CANNOT_TELL),
    ],
)  # fmt: skip
def test_outcomes(ours, theirs, outcome):
    assert judge(ours, theirs).outcome is outcome


def test_reasons_name_missing_evidence():
    few = judge([1.0] * 3, [2.0] * 9)
    assert few.reasons == ("ours: n = 3, at least 6 samples are needed",)
    assert few.speedup_ci95 is None
    wide = judge(drawn(300, 0.3), drawn(320, 0.3, seed=1))
    assert any("overlap" in reason for reason in wide.reasons)
    assert any("leaves 1/1.10 to 1.10" in reason for reason in wide.reasons)
    fast = judge(drawn(100), drawn(200, seed=1))
    assert len(fast.reasons) == 3
    assert any("the medians differ 1.99" in reason for reason in fast.reasons)


def test_a_doubt_rules_out_every_other_outcome():
    doubted = judge(drawn(270), drawn(330, seed=1), doubt="another GPU")
    assert (doubted.outcome, doubted.reasons) == (Outcome.CANNOT_TELL, ("another GPU",))
    assert doubted.speedup == pytest.approx(330 / 270, rel=0.01)
    document = doubted.to_json()
    assert document["verdict"] == "cannot tell"
    assert len(document["speedup_ci95"]) == 2


@pytest.mark.parametrize("samples", [[], [0.0] * 9, [-1.0] * 9, [math.inf] * 9])
def test_rejects_invalid_durations(samples):
    with pytest.raises(ValueError, match=r"positive|finite"):
        judge(samples, [1.0] * 9)
