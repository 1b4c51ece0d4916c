"""Curves, thresholds and intervals learnt from labels. Their coverage is measured by `python -m evaluation matches`."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from isosim.arrays import Doubles, Rows
from isosim.matching.drawing import IN_VAIN, draw, systematic
from isosim.matching.estimate import DRAWS, Bins, Estimate, estimate, logits_of, posterior, prior

SIMILARITY = np.sort(0.5 + 0.5 * np.random.default_rng(0).beta(1, 6, 20_000)).astype(np.float32)[::-1]
CHANCES = 1 / (1 + np.exp(-25 * (SIMILARITY.astype(np.float64) - 0.75)))
TRUTH = (np.random.default_rng(1).random(len(CHANCES)) < CHANCES).astype(np.float64)


def judged(count: int, seed: int = 0, truth: Doubles = TRUTH) -> Rows:
    rows = np.empty(0, np.intp)
    while len(rows) < count:
        rows = np.append(
            rows, draw(SIMILARITY, rows, truth[rows], min(50, count - len(rows)), precision=0.8, seed=seed)
        )
    return rows


@pytest.fixture(scope="module")
def learnt() -> Estimate:
    rows = judged(200)
    return estimate(SIMILARITY, rows, TRUTH[rows])


def test_precision_and_recall_are_those_of_what_is_given_out(learnt: Estimate) -> None:
    """Judged pairs follow their labels: above a threshold those with label 0 are left out, all with label 1 pass."""
    rows = judged(200)
    for threshold in (0.7, 0.75, 0.8, 0.99):
        point, passing = learnt.at(threshold), np.float32(threshold) <= SIMILARITY
        passing[rows] = TRUTH[rows] == 1
        assert point.passing == passing.sum()
        assert (
            point.precision is not None and point.precision_interval is not None and point.recall_interval is not None
        )
        assert point.precision == pytest.approx(TRUTH[passing].mean(), abs=0.1)
        assert point.recall == pytest.approx(TRUTH[passing].sum() / TRUTH.sum(), abs=0.2)
        assert point.precision_interval[0] <= TRUTH[passing].mean() <= point.precision_interval[1]
        assert point.recall_interval[0] <= TRUTH[passing].sum() / TRUTH.sum() <= point.recall_interval[1]
        assert point.false == pytest.approx((1 - point.precision) * point.passing)
        assert point.false_interval[0] <= (1 - TRUTH[passing]).sum() <= point.false_interval[1]


@settings(max_examples=40, deadline=None)
@given(
    seed=some.integers(0, 10**6), share=some.floats(0, 1), count=some.integers(0, 3000), top=some.integers(1, 20_000)
)
def test_what_a_person_picks_out_tells_nothing_of_the_other_candidates(
    learnt: Estimate, seed: int, share: float, count: int, top: int
) -> None:
    """Whichever pairs are picked, the curve stays, and as many of those that were not drawn are expected to be false as
    before, the picked ones among them, as far as so many are left."""
    rng = np.random.default_rng(seed)
    drawn, pool = judged(200), np.setdiff1d(np.arange(top), judged(200))
    weights = np.where(TRUTH[pool] == 1, share, 1 - share) + 1e-9
    chosen = rng.choice(pool, min(count, len(pool)), replace=False, p=weights / weights.sum()) if len(pool) else pool
    known = learnt.knowing(chosen, TRUTH[chosen])
    np.testing.assert_array_equal(known.chances, learnt.chances)
    false = learnt.rest - learnt.matches  # (DRAWS, B + 1)
    for number in range(1, len(learnt.edges), 12):
        passing = np.float32(SIMILARITY[learnt.edges[number] - 1]) <= SIMILARITY
        different = (TRUTH[chosen[passing[chosen]]] == 0).sum()
        left = passing.sum() - passing[np.append(drawn, chosen)].sum()
        after = known.at(float(SIMILARITY[learnt.edges[number] - 1]))
        assert after.false == pytest.approx(np.clip(false[:, number] - different, 0, left).mean(), abs=1e-6)
        passing[np.append(drawn, chosen)] = TRUTH[np.append(drawn, chosen)] == 1
        assert after.passing == passing.sum()
        assert after.precision == pytest.approx(1 - after.false / after.passing) if after.passing else True
        assert after.recall is not None and 0 <= after.recall <= 1


@pytest.mark.parametrize("label", [0, 1])
def test_who_picks_out_the_right_pairs_or_the_wrong_ones_leaves_the_intervals_right(label: int) -> None:
    """If the picked pairs only left the others' share as it was, 1 in 3 of the intervals held the truth."""
    held = []
    for seed in range(30):
        truth = (np.random.default_rng(seed).random(len(CHANCES)) < CHANCES).astype(np.intp)
        rows = judged(70, seed, truth.astype(np.float64))
        first = np.setdiff1d(np.arange(150), rows)
        chosen = first[truth[first] == label][:50]
        point = estimate(SIMILARITY, rows, truth[rows]).knowing(chosen, truth[chosen]).at(0.8)
        passing = np.float32(0.8) <= SIMILARITY
        passing[np.append(rows, chosen)] = truth[np.append(rows, chosen)] == 1
        assert point.precision_interval is not None
        held.append(point.precision_interval[0] <= truth[passing].mean() <= point.precision_interval[1])
    assert np.mean(held) >= 0.9


def test_a_threshold_is_the_lowest_that_reaches_its_precision(learnt: Estimate) -> None:
    threshold, strict = learnt.threshold_for(0.8), learnt.threshold_for(0.8, bound=True)
    assert threshold is not None and strict is not None and threshold < strict
    assert learnt.at(threshold).precision == pytest.approx(0.8, abs=0.02)
    interval = learnt.at(strict).precision_interval
    assert interval is not None and interval[0] == pytest.approx(0.8, abs=0.03) and interval[0] >= 0.8
    lower = [point for point in learnt.at_many() if point.threshold < threshold]
    assert all(point.precision is not None and point.precision < 0.8 for point in lower)
    assert learnt.threshold_for(0.9999) is None
    for bound in (False, True):
        best = learnt.highest(bound=bound)
        assert best is not None and best.precision is not None and best.precision_interval is not None
        value = best.precision_interval[0] if bound else best.precision
        assert learnt.threshold_for(value - 0.01, bound=bound) is not None
        assert learnt.threshold_for(value + 0.01, bound=bound) is None


def test_precision_falls_and_recall_rises_along_the_curve(learnt: Estimate) -> None:
    points = learnt.at_many()
    assert (np.diff([point.threshold for point in points]) < 0).all()
    assert (np.diff([point.recall for point in points]) >= 0).all()
    assert (np.diff(learnt.curve(), axis=0) <= 1e-9).all()  # the curve itself never falls with the similarity
    assert points[-1].recall == 1 and points[-1].passing == len(SIMILARITY) - (1 - TRUTH[judged(200)]).sum()


def test_intervals_shrink_with_labels_and_what_is_needed_says_how_many(learnt: Estimate) -> None:
    few = judged(50)
    first = estimate(SIMILARITY, few, TRUTH[few])
    for figure in ("precision", "recall"):
        wide, narrow = (getattr(one.at(0.75), f"{figure}_interval") for one in (first, learnt))
        assert narrow[1] - narrow[0] < wide[1] - wide[0]
    assert 50 < first.needed(0.75, 0.15) < 600
    assert learnt.needed(0.75, 0.15) < first.needed(0.75, 0.15)
    assert learnt.needed(0.75, 1.0) == 0
    assert first.needed(0.75, 1e-9) == len(SIMILARITY) - 50  # all that are left


def test_if_all_candidates_are_judged_nothing_is_uncertain() -> None:
    rows = np.arange(0, 20_000, 100)
    few, truth = SIMILARITY[rows], TRUTH[rows]
    for threshold in (0.0, 0.75, 1.1):
        point = estimate(few, np.arange(len(few)), truth).at(threshold)
        assert (point.passing, point.false) == (truth.sum(), 0)
        assert point.precision_interval == point.recall_interval == (1, 1)


def test_the_same_seed_gives_the_same_figures_and_another_confidence_other_intervals() -> None:
    rows = judged(50)
    one, same, wide = (estimate(SIMILARITY, rows, TRUTH[rows], confidence=share).at(0.75) for share in (0.8, 0.8, 0.99))
    assert one == same and one.precision == wide.precision
    assert wide.false_interval[0] < one.false_interval[0] < one.false_interval[1] < wide.false_interval[1]


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_of_one_kind_leave_intervals_that_do_not_touch_the_other_end(label: float) -> None:
    rows = judged(25, truth=np.full(len(TRUTH), label))
    point = estimate(SIMILARITY, rows, np.full(25, label)).at(0.75)
    low, high = np.array(point.false_interval) / (point.passing - label * 25)  # of those that are not judged
    assert (low > 0.4) if label == 0 else (high < 0.6)
    assert high - low > 0.02


def test_nothing_is_recommended_without_labels_and_nothing_breaks_without_candidates() -> None:
    assert estimate(SIMILARITY, np.empty(0, np.intp), []).threshold_for(0.5) is None
    point = estimate(SIMILARITY[:0], np.empty(0, np.intp), []).at(0.5)
    assert (point.passing, point.precision, point.recall) == (0, None, None)
    assert estimate(SIMILARITY, judged(25), np.zeros(25)).at(1.1).precision is None


def test_the_posterior_without_labels_is_the_prior() -> None:
    bins = Bins(SIMILARITY)
    none = np.zeros(len(bins.sizes), np.intp)
    drawn = posterior(bins, none, none, np.random.default_rng(0), 4 * DRAWS)
    mean, precision = prior()
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.5)
    np.testing.assert_allclose(drawn.std(0), np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.25)
    assert (np.diff(logits_of(bins.parts, drawn), axis=1) <= 0).all()


@settings(max_examples=30, deadline=None)
@given(count=some.integers(1, 60), size=some.integers(1, 400), known=some.integers(0, 80), seed=some.integers(0, 99))
def test_no_candidate_is_drawn_twice(count: int, size: int, known: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    similarity = np.sort(rng.random(size).astype(np.float32))[::-1]
    if seed % 3 == 0:
        similarity = np.full(size, 0.5, np.float32)
    rows = rng.permutation(size)[:known]
    labels = (rng.random(len(rows)) < 0.5).astype(int)
    targets: list[dict[str, Any]] = [{}, {"precision": 0.7}, {"threshold": 0.5}]
    drawn = draw(similarity, rows, labels, count, seed=seed, **targets[seed % 3])
    assert len(drawn) == min(count, size - len(rows))
    assert len(np.union1d(drawn, rows)) == len(drawn) + len(rows)
    np.testing.assert_array_equal(drawn, draw(similarity, rows, labels, count, seed=seed, **targets[seed % 3]))


def test_labels_gather_on_both_sides_of_the_threshold() -> None:
    rows = judged(150)
    shares = np.cumsum(TRUTH) / np.arange(1, len(TRUTH) + 1)
    wanted = SIMILARITY[np.flatnonzero(shares >= 0.8)[-1]]
    late = SIMILARITY[rows[50:]]
    assert 30 <= (late >= wanted).sum() <= 85
    near = ((CHANCES[rows[50:]] > 0.05) & (CHANCES[rows[50:]] < 0.95)).mean()
    assert near > 0.5 > 3 * ((CHANCES > 0.05) & (CHANCES < 0.95)).mean()


def test_drawn_for_the_precision_alone_as_many_labels_tell_it_more_exactly() -> None:
    """So an interval of a wanted precision is narrow after fewer judgements."""
    widths: list[list[float]] = [[], []]
    for seed in range(6):
        truth = (np.random.default_rng(seed).random(len(CHANCES)) < CHANCES).astype(np.float64)
        for found, recall in zip(widths, (True, False), strict=True):
            rows = np.empty(0, np.intp)
            while len(rows) < 80:
                more = draw(SIMILARITY, rows, truth[rows], 20, precision=0.8, recall=recall, seed=seed)
                rows = np.append(rows, more)
            interval = estimate(SIMILARITY, rows, truth[rows]).at(0.8).precision_interval
            assert interval is not None
            found.append(interval[1] - interval[0])
    assert np.mean(widths[1]) < 0.85 * np.mean(widths[0])


def test_rows_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.array([1.0, 1, 1, 1, 1, 1, 2, 100])
    picks = [systematic(weights, 3, np.random.default_rng(seed)) for seed in range(400)]
    shares = np.bincount(np.concatenate(picks), minlength=8) / 400
    np.testing.assert_allclose(shares, [*[0.25] * 6, 0.5, 1], atol=0.07)


def test_after_judgements_in_vain_the_most_alike_pairs_are_judged_first() -> None:
    """In a file with few matches or none, these tell soonest; one match, and the target decides again."""
    similarity = np.linspace(0.95, 0.3, 500, dtype=np.float32)
    judged = np.arange(100, 100 + IN_VAIN)
    assert draw(similarity, judged, np.zeros(IN_VAIN), 30).tolist() == list(range(30))
    assert draw(similarity, np.arange(IN_VAIN), np.zeros(IN_VAIN), 3).tolist() == [IN_VAIN, IN_VAIN + 1, IN_VAIN + 2]
    for before in (judged[:-1], judged):
        labels = np.zeros(len(before)) if before is not judged else (judged == 100).astype(float)
        assert draw(similarity, before, labels, 30).tolist() != list(range(30))
