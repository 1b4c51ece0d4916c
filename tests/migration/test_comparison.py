"""What is said of two versions' scores of the same pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from isosim.arrays import Doubles
from isosim.scoring.comparison import FEWEST, WINDOW, Batch, Comparison, spearman


def batch(old_rates: Doubles, new_rates: Doubles) -> Batch:
    return Batch(old_rates, new_rates, 1 - old_rates, 1 - new_rates)


@given(
    arrays(np.float64, 40, elements=st.integers(0, 9).map(float)),
    arrays(np.float64, 40, elements=st.integers(0, 9).map(float)),
)
def test_the_rank_correlation_is_scipys_also_with_ties(a: Doubles, b: Doubles) -> None:
    if len(np.unique(a)) == 1 or len(np.unique(b)) == 1:
        assert spearman(a, b) is None
    else:
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


def test_nothing_is_said_of_nothing() -> None:
    found = Comparison((1, 2)).measure()
    assert (found.pairs, found.mean_difference, found.changed_sides, found.spearman) == (0, None, None, None)


def test_differences_and_changed_sides_are_of_the_pairs_that_were_seen() -> None:
    window = Comparison((1, 2))
    window.observe(batch(np.array([0.5, 0.009, 0.02]), np.array([0.4, 0.011, 0.0005])))
    window.observe(batch(np.array([0.01]), np.array([0.01])))
    found = window.measure()
    assert found.pairs == found.window == 4
    assert found.mean_difference == pytest.approx((0.1 + 0.002 + 0.0195) / 4)
    assert found.difference_95 == pytest.approx(np.quantile([0.1, 0.002, 0.0195, 0.0], 0.95))
    assert found.changed_sides == {0.01: 2 / 4, 0.001: 1 / 4}
    assert found.spearman is None
    assert found.pairs < FEWEST


def test_only_the_last_pairs_count_and_they_stay_pairs() -> None:
    rates = np.random.default_rng(0).uniform(size=(2, WINDOW + 500))
    window = Comparison((1, 2))
    for start in range(0, rates.shape[1], 37):
        window.observe(batch(*rates[:, start : start + 37]))
    found, (old, new) = window.measure(), rates[:, -WINDOW:]
    assert (found.pairs, found.window) == (rates.shape[1], WINDOW)
    assert found.mean_difference == pytest.approx(np.abs(old - new).mean())
    assert found.spearman == pytest.approx(stats.spearmanr(old, new).statistic)
