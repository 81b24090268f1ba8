import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vidc.compiler.bench.statistics import (
    LEAST_FOR_INTERVAL,
    LEAST_FOR_P99,
    SEED,
    Summary,
    bootstrap_medians,
    cliffs_delta,
    interval,
)

durations = st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=40)
enough = st.lists(st.floats(1e-3, 1e4), min_size=LEAST_FOR_INTERVAL, max_size=40)


@given(durations)
def test_a_summary_lies_within_its_samples(samples):
    found = Summary.of(samples)
    assert found.n == len(samples)
    assert min(samples) <= found.median <= found.max == max(samples)
    assert min(samples) <= found.mean * (1 + 1e-12)
    assert found.mean <= max(samples) * (1 + 1e-12)
    assert (found.ci95 is None) == (len(samples) < LEAST_FOR_INTERVAL)
    if found.ci95 is not None:
        low, high = found.ci95
        assert min(samples) <= low <= found.median <= high <= max(samples)


@given(enough, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples, random):
    shuffled = samples.copy()
    random.shuffle(shuffled)
    found, again = Summary.of(samples), Summary.of(shuffled)
    assert (found.median, found.ci95, found.p99, found.max) == (
        again.median, again.ci95, again.p99, again.max,
    )  # fmt: skip


@given(enough, st.floats(0.01, 100))
def test_the_unit_does_not_matter(samples, factor):
    found, scaled = Summary.of(samples), Summary.of([factor * s for s in samples])
    assert scaled.median == pytest.approx(factor * found.median)
    assert scaled.ci95 == pytest.approx([factor * end for end in found.ci95])


def test_equal_samples_leave_no_doubt():
    found = Summary.of([2.5] * 10)
    assert (found.median, found.ci95, found.mean, found.max) == (2.5, (2.5, 2.5), 2.5, 2.5)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf], [[1.0], [2.0]]])
def test_rejects_invalid_samples(samples):
    with pytest.raises(ValueError, match="finite samples"):
        Summary.of(samples)


@given(st.integers(LEAST_FOR_P99 - 50, LEAST_FOR_P99 + 150), st.integers(0, 2**32))
def test_p99_is_left_out_where_it_would_be_the_maximum(n, seed):
    samples = list(np.random.default_rng(seed).random(n))
    found = Summary.of(samples).p99
    if n < LEAST_FOR_P99:
        assert found is None
    else:
        assert found == np.percentile(samples, 99, method="inverted_cdf")
        assert found < max(samples)


@given(st.integers(LEAST_FOR_INTERVAL, 60), st.integers(0, 2**32))
def test_the_interval_is_that_of_a_percentile_bootstrap(n, seed):
    samples = np.random.default_rng(seed).lognormal(size=n)
    medians = stats.bootstrap(
        (samples,), np.median, n_resamples=10_000, method="percentile",
        random_state=np.random.default_rng(seed),
    ).bootstrap_distribution  # fmt: skip
    # Shares of two draws of 10,000 differ by 0.22 % in standard deviation.
    noise = 0.011
    for end, share in zip(Summary.of(samples).ci95, (0.025, 0.975), strict=True):
        assert (medians < end).mean() <= share + noise
        assert (medians <= end).mean() >= share - noise


def test_the_interval_covers_the_median_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        low, high = Summary.of(generator.exponential(size=25)).ci95
        covered += low <= math.log(2) <= high
    assert 0.91 <= covered / 300 <= 0.99


def test_a_large_draw_is_made_in_parts():
    samples = np.random.default_rng(2).random(3000)
    medians = bootstrap_medians(samples, SEED)
    assert len(medians) == 10_000
    low, high = interval(medians)
    assert low < np.median(samples) < high
    # Of order statistics: 3000 / 2 -+ 1.96 sqrt(3000) / 2.
    ordered = np.sort(samples)
    assert np.searchsorted(ordered, low) == pytest.approx(1446, abs=12)
    assert np.searchsorted(ordered, high) == pytest.approx(1554, abs=12)


@given(durations, durations)
def test_cliffs_delta_counts_pairs(ours, theirs):
    pairs = [np.sign(a - b) for a in ours for b in theirs]
    delta = cliffs_delta(ours, theirs)
    assert delta == pytest.approx(np.mean(pairs))
    assert cliffs_delta(theirs, ours) == -delta
    # U counts the pairs that ours win, ties as halves.
    u = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic if len(pairs) > 1 else None
    if u is not None:
        assert delta == pytest.approx(2 * u / len(pairs) - 1)


@given(durations, durations)
def test_cliffs_delta_is_whole_where_the_sets_are_apart(ours, theirs):
    beyond = [max(ours) + sample for sample in theirs]
    assert cliffs_delta(ours, beyond) == -1
