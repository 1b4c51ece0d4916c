"""Similarities that words adjust: better where words tell, and untouched where they do not."""

import numpy as np
import pytest

from isosim.arrays import Doubles, Floats
from isosim.matching.adjusting import by_similarity, by_words
from isosim.matching.estimate import estimate
from isosim.scoring.pair_features import FEWEST_LABELS

COUNT = 4000
NUMBERS = 2  # the column of `numbers_differ`


def population(seed: int, effect: float) -> tuple[Floats, Doubles, Doubles]:
    """Similarities from high to low, features, and labels whose logit falls by `effect` where numbers differ."""
    rng = np.random.default_rng(seed)
    similarity = np.sort(np.cos(np.sqrt(rng.uniform(0, 0.8, COUNT)))[::-1].astype(np.float32))[::-1]
    features = np.column_stack([rng.uniform(0, 1, (COUNT, 2)), rng.random((COUNT, 2)) < [0.4, 0.05]]).astype(np.float64)
    logits = 4 - 9 * np.arccos(similarity) - effect * features[:, NUMBERS]
    return similarity, features, (rng.random(COUNT) < 1 / (1 + np.exp(-logits))).astype(np.float64)


def area(order: Doubles, truth: Doubles) -> float:
    """Area under the ROC curve of candidates, best first."""
    ranks = np.arange(len(order))[::-1][np.argsort(np.argsort(order))]
    matches = truth == 1
    return float((ranks[matches].mean() - (matches.sum() - 1) / 2) / (~matches).sum())


@pytest.mark.parametrize("seed", range(3))
def test_words_that_tell_improve_the_order(seed: int) -> None:
    similarity, features, truth = population(seed, 2)
    rows = np.random.default_rng(seed).choice(COUNT, 400, replace=False)
    ranking = by_words(similarity, features, rows, truth[rows].astype(np.intp))
    assert ranking.adjusted and (np.diff(ranking.similarity) <= 0).all()
    adjusted = ranking.similarity[ranking.place]
    assert (adjusted <= similarity + 1e-6).all(), "words only take away"
    assert (ranking.order[ranking.place] == np.arange(COUNT)).all()
    assert area(ranking.place.astype(np.float64), truth) > area(np.arange(COUNT, dtype=np.float64), truth) + 0.02
    same = features[:, NUMBERS] == 0
    assert adjusted[same].mean() - similarity[same].mean() > adjusted[~same].mean() - similarity[~same].mean() + 0.02
    half = ranking.above(float(ranking.similarity[COUNT // 2]))
    assert half > COUNT // 2 and set(ranking.order[:half]) >= set(ranking.order[: COUNT // 2])


def test_words_that_tell_nothing_change_nothing() -> None:
    kept = 0
    for seed in range(20):
        similarity, features, truth = population(seed, 0)
        rows = np.random.default_rng(seed).choice(COUNT, 200, replace=False)
        ranking = by_words(similarity, features, rows, truth[rows].astype(np.intp))
        kept += not ranking.adjusted
        if not ranking.adjusted:
            assert ranking.similarity is similarity and ranking.unseen is None
            assert (ranking.order == np.arange(COUNT)).all()
    assert kept >= 14


def test_few_judgements_leave_the_order_to_other_labels() -> None:
    similarity, features, truth = population(0, 2)
    rows, none = np.arange(FEWEST_LABELS - 1), np.empty(0, np.intp)
    assert not by_words(similarity, features, rows, truth[rows].astype(np.intp)).adjusted
    assert not by_words(similarity[:0], features[:0], none, none).adjusted
    known = np.array([0.0, 0.0, -2.0, 0.0])
    ranking = by_words(similarity, features, none, none, known=known)
    assert ranking.adjusted and ranking.unseen is None, "its labels are not those of the judged pairs"
    assert area(ranking.place.astype(np.float64), truth) > area(np.arange(COUNT, dtype=np.float64), truth) + 0.02
    every = ranking.similarity[ranking.place]
    np.testing.assert_allclose(every[features[:, NUMBERS] == 0], similarity[features[:, NUMBERS] == 0], atol=1e-6)
    one = by_words(similarity[:1], features[:1], none, none, known=known)
    assert one.order.tolist() == [0]


def test_intervals_hold_the_truth_although_the_order_was_learnt_from_the_same_labels() -> None:
    held = []
    for seed in range(40):
        similarity, features, truth = population(seed, 2)
        rows = np.sort(np.random.default_rng(seed).choice(COUNT, 150, replace=False))
        ranking = by_words(similarity, features, rows, truth[rows].astype(np.intp), seed=seed)
        learnt = estimate(ranking.similarity, ranking.place[rows], truth[rows], unseen=ranking.unseen, seed=seed)
        passes = np.zeros(COUNT, np.bool_)
        passes[ranking.order[: ranking.above(0.8)]] = True
        passes[rows] = truth[rows] == 1
        point, right = learnt.at(0.8), truth[passes].sum()
        assert point.precision_interval is not None and point.recall_interval is not None
        assert point.passing == passes.sum()
        for interval, value in (
            (point.precision_interval, right / passes.sum()),
            (point.recall_interval, right / truth.sum()),
        ):
            held.append(interval[0] <= value <= interval[1])
    assert np.mean(held) >= 0.88


def test_a_threshold_keeps_equal_similarities_together() -> None:
    ranking = by_similarity(np.array([0.9, 0.8, 0.8, 0.2], np.float32))
    assert [ranking.above(cut) for cut in (2, 0.9, 0.8, 0.5, -1)] == [0, 1, 3, 3, 4]
