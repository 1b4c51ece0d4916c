"""Recall, precision and their intervals: covering, and wide where nobody has looked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from isosim.fitting.recall import at_thresholds
from tests.modelling.calibration.test_probability import draw


@given(st.integers(1, 200), st.integers(0, 1000))
def test_a_threshold_below_all_matches_finds_them_all_and_no_more(count: int, seed: int) -> None:
    weights = np.random.default_rng(seed).uniform(0.1, 9, count)
    one = np.ones(count)
    recall, low, high, *_ = at_thresholds(np.array([-1.0]), np.linspace(0, 1, count), one, weights, one[:1])
    assert recall[0] == pytest.approx(1)
    assert low[0] < recall[0] <= high[0] <= 1


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [100, 1000])
def test_the_interval_of_a_recall_covers_the_truth(count: int, weighted: bool) -> None:
    """In 400 samples. The weighted samples hold more high-scoring pairs than the population does."""
    similarities, labels = draw(50_000, seed=3)
    threshold = np.array([0.35])
    truth_of_all = labels[similarities >= threshold].sum() / labels.sum()
    chance = 0.2 + 0.8 * expit(10 * (similarities - 0.3)) if weighted else np.ones(len(similarities))
    chance /= chance.sum()
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        rows = rng.choice(len(similarities), count, p=chance)
        own = similarities[rows], labels[rows], 1 / chance[rows]
        _, low, high, *_ = at_thresholds(threshold, *own, np.zeros(1))
        covered += bool(low[0] <= truth_of_all <= high[0])
    assert 0.90 <= covered / 400 <= 0.985


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("at", [0.3, 0.4])
def test_the_interval_of_a_precision_covers_the_truth(at: float, weighted: bool) -> None:
    """In 400 samples of 300 pairs."""
    similarities, labels = draw(50_000, seed=3)
    truth = labels[similarities >= at].mean()
    chance = 0.2 + 0.8 * expit(10 * (similarities - 0.3)) if weighted else np.ones(len(similarities))
    chance /= chance.sum()
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        rows = rng.choice(len(similarities), 300, p=chance)
        stated = np.array([labels[rows][similarities[rows] >= at].mean()])
        own = similarities[rows], labels[rows], 1 / chance[rows]
        *_, low, high = at_thresholds(np.array([at]), *own, stated)
        assert low[0] <= stated[0] <= high[0]
        covered += bool(low[0] <= truth <= high[0])
    assert 0.90 <= covered / 400 <= 0.99


def test_heavy_pairs_without_a_match_widen_the_interval_of_a_recall() -> None:
    """What they stand for may hold matches that no draw has met."""
    similarities = np.linspace(1, 0, 200)
    labels = (similarities > 0.75).astype(np.float64)
    heavy = np.where(similarities < 0.5, 1000.0, 1.0)
    at = np.array([0.7])
    bounds = [at_thresholds(at, similarities, labels, w, at).recall_low[0] for w in (np.ones(200), heavy)]
    assert bounds[0] > 0.9
    assert bounds[1] < 0.1
