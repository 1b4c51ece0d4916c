"""Searches with known answers."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from isosim.matching.check import NONE, Share, answer
from tests.core.matching.test_candidates import unit


def test_hits_are_right_or_wrong_as_the_truth_says() -> None:
    gallery = np.array([[1, 0], [0, 1], [0, 1]], np.float32)
    queries = np.array([[1, 0], [0.6, 0.8], [0, 1], [0.8, 0.6]], np.float32)
    searches = answer(queries, gallery, np.array([0, 0, 2, NONE]))
    assert searches.best.tolist() == [0, 1, 2, 0]  # of two equal entries the true one
    assert searches.right.tolist() == [True, False, True, False]
    outcome = searches.at(0.8)
    assert (outcome.wrong.count, outcome.wrong.total) == (2, 4)
    assert (outcome.found.count, outcome.found.total) == (2, 3)
    strict = searches.threshold_for(0.25)
    assert strict == pytest.approx(0.8) and strict is not None and searches.at(strict).wrong.count == 0
    assert searches.threshold_for(0.5) == pytest.approx(0.8)
    assert searches.threshold_for(0.0, bound=True) is None


def test_many_searches_are_those_of_a_whole_matrix() -> None:
    rng = np.random.default_rng(0)
    queries, gallery = unit(rng, 600), unit(rng, 9000)
    scores = queries @ gallery.T
    truth = np.where(np.arange(600) % 2, scores.argmax(1), rng.integers(0, 9000, 600))
    searches = answer(queries, gallery, truth)
    np.testing.assert_array_equal(searches.best, scores.argmax(1))
    np.testing.assert_array_equal(searches.right, scores.argmax(1) == truth)
    for rate in (0.01, 0.1):
        for bound in (False, True):
            threshold = searches.threshold_for(rate, bound=bound)
            if threshold is None:
                assert bound
                continue
            wrong = searches.at(threshold).wrong
            assert (wrong.interval[1] if bound else wrong.share or 0) <= rate
            below = searches.similarity[(searches.similarity < threshold) & ~searches.right].max()
            more = searches.at(float(below)).wrong
            assert (more.interval[1] if bound else more.share or 0) > rate
    curve = searches.curve(20)
    assert (np.diff([one.threshold for one in curve]) < 0).all()
    assert (np.diff([one.found.count for one in curve]) >= 0).all() and curve[-1].found.count == searches.right.sum()


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_intervals_hold_the_true_share(share: float) -> None:
    counts = np.arange(1001)
    chances = binom.pmf(counts, 1000, share)
    covered = [low <= share <= high for low, high in (Share.of(int(n), 1000, 0.95).interval for n in counts)]
    assert 0.95 <= chances @ covered < 0.99
    assert Share.of(12, 300, 0.95).interval == pytest.approx(tuple(binomtest(12, 300).proportion_ci(0.95)), abs=1e-9)


def test_the_number_of_queries_that_a_width_needs() -> None:
    searches = answer(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.array([0, NONE]))
    needed = searches.needed(0.01, 0.008)
    for queries, enough in ((needed, True), (needed - 1, False)):
        low, high = Share.of(0, 1, 0.95).interval if not queries else Share.of(queries // 100, queries, 0.95).interval
        assert (high - low <= 0.008) == enough or abs(high - low - 0.008) < 5e-4
    assert Share.of(0, 0, 0.95) == Share(0, 0, None, (0.0, 1.0))
