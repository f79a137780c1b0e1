"""Tests against closed forms, enumeration and SciPy."""

import doctest
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import qkspectra.statistics
from qkspectra.statistics import (
    benjamini_hochberg,
    bootstrap_interval,
    formation,
    log_rank,
    log_rank_scores,
    paired_ratio,
    permutation_difference,
    sign_flip,
    sign_flip_interval,
)

DIFFERENCES = st.lists(st.floats(-3, 3).map(lambda x: round(x, 2)), min_size=1, max_size=8).map(np.array)


def test_the_examples_of_the_docstrings_hold() -> None:
    assert doctest.testmod(qkspectra.statistics).failed == 0


def test_formation_needs_persistence() -> None:
    accuracy = np.array([0.0, 0.95, 0.95, 0.2, 0.95, 0.95, 0.95])
    assert formation(accuracy, 0.9, 2) == 1
    assert formation(accuracy, 0.9, 3) == 4
    assert formation(accuracy, 0.9, 4) is None
    assert formation(np.array([np.nan, 0.9, np.nan]), 0.9, 1) == 1
    assert formation(np.array([np.nan] * 3), 0.9, 1) is None


@given(DIFFERENCES)
@settings(max_examples=60, deadline=None)
def test_sign_flip_visits_every_assignment(differences: np.ndarray) -> None:
    sums = [np.dot(signs, differences) for signs in product([1, -1], repeat=len(differences))]
    observed = differences.sum()
    assert sign_flip(differences) == np.mean([abs(s) >= abs(observed) - 1e-9 for s in sums])
    assert sign_flip(differences, "greater") == np.mean([s >= observed - 1e-9 for s in sums])
    assert sign_flip(differences, "less") == np.mean([s <= observed + 1e-9 for s in sums])


def test_sign_flip_agrees_with_scipy_and_has_its_floor() -> None:
    differences = np.random.default_rng(0).normal(0.4, 1, 12)
    theirs = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip(differences) == pytest.approx(theirs.pvalue, abs=1e-12)
    assert sign_flip(np.arange(1.0, 17.0)) == 2 / 2**16
    with pytest.raises(ValueError, match="too many"):
        sign_flip(np.ones(30))
    with pytest.raises(ValueError, match="unknown alternative"):
        sign_flip(np.ones(3), "up")


def test_the_interval_holds_exactly_the_shifts_that_are_not_rejected() -> None:
    differences = np.random.default_rng(1).normal(0.3, 1, 10)
    low, high = sign_flip_interval(differences)
    assert low < differences.mean() < high
    for bound, inside in ((low, 1), (high, -1)):
        assert sign_flip(differences - (bound + inside * 1e-3)) > 0.05
        assert sign_flip(differences - (bound - inside * 1e-3)) <= 0.05
    assert sign_flip_interval(np.ones(4)) == (-np.inf, np.inf)
    assert sign_flip_interval(np.ones(8)) == (1, 1)


def test_the_interval_covers() -> None:
    generator = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        low, high = sign_flip_interval(generator.normal(0.5, 1, 8))
        hits += low <= 0.5 <= high
    assert hits >= 181  # at least 95% of 200 on average; 181 is 3 standard deviations below


def test_paired_ratio_is_geometric() -> None:
    control = np.array([100.0, 200, 300, 400, 500, 600])
    result = paired_ratio(2 * control, control)
    assert result.ratio == pytest.approx(2)
    assert (result.pairs, result.above) == (6, 6)
    assert result.p == 2 / 2**6
    assert paired_ratio(2 * control, control, "greater").p == 1 / 2**6
    mixed = paired_ratio(control * [4, 0.25, 4, 0.25, 4, 0.25], control)
    assert mixed.ratio == pytest.approx(1)
    assert (mixed.p, mixed.above) == (1, 3)
    assert mixed.low < 1 < mixed.high


def test_permutation_difference_is_exact() -> None:
    assert permutation_difference(np.array([3.0, 4, 5]), np.array([0.0, 1, 2])) == pytest.approx(2 / 20)
    assert permutation_difference(np.array([3.0, 4, 5]), np.array([0.0, 1, 2]), "greater") == pytest.approx(1 / 20)
    assert permutation_difference(np.arange(4.0), np.array([-1.0, -2, -3]), "greater") == pytest.approx(1 / 35)


def test_benjamini_hochberg_by_hand() -> None:
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])


def test_bootstrap_interval_covers_the_median() -> None:
    values = np.random.default_rng(3).normal(5, 1, 40)
    low, high = bootstrap_interval(values)
    assert low < np.median(values) < high
    assert bootstrap_interval(values) == (low, high)
    assert high - low < 1.5
    assert bootstrap_interval(np.array([1.0])) == (-np.inf, np.inf)


def test_log_rank_scores_are_observed_minus_expected() -> None:
    """Against the textbook sum over event times."""
    time = np.array([3.0, 5, 5, 8, 10, 10])
    censored = np.array([False, False, True, False, True, False])
    group = np.array([True, False, True, True, False, False])
    scores = log_rank_scores(time, censored)
    assert scores.sum() == pytest.approx(0)
    expected = sum(
        ((time == t) & ~censored).sum() * (group & (time >= t)).sum() / (time >= t).sum()
        for t in np.unique(time[~censored])
    )
    assert scores[group].sum() == pytest.approx((group & ~censored).sum() - expected)


def test_log_rank_is_exact_where_it_can_be_and_close_to_scipy_where_not() -> None:
    time = np.array([1.0, 2, 3, 10, 11, 12])
    separated = np.array([True] * 3 + [False] * 3)
    assert log_rank(time, np.zeros(6, bool), separated) == pytest.approx(2 / 20)
    generator = np.random.default_rng(4)
    first, second = generator.exponential(1, 40), generator.exponential(1.6, 40)
    censored = np.concatenate([first, second]) > 2
    time = np.minimum(np.concatenate([first, second]), 2)
    group = np.arange(80) < 40
    theirs = stats.logrank(
        stats.CensoredData.right_censored(time[:40], censored[:40]),
        stats.CensoredData.right_censored(time[40:], censored[40:]),
    ).pvalue
    assert log_rank(time, censored, group) == pytest.approx(theirs, abs=0.02)


def test_all_censored_is_no_evidence() -> None:
    assert log_rank(np.full(8, 9.0), np.ones(8, bool), np.arange(8) < 4) == 1
