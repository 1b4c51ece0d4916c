"""Probabilities that labelled pairs teach: curve, precision, recall, features of a pair, and their figures."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit
from scipy.stats import binomtest
from sklearn.linear_model import LogisticRegression

from isosim.arrays import Doubles
from isosim.encoders.store import EncoderArtifact
from isosim.fitting import pair_map, probability
from isosim.fitting.job import calibrate_job
from isosim.fitting.probability import (
    FEWEST_ABOVE,
    LEVELS,
    SLOPES,
    ProbabilityReport,
    bending_line,
    equal_mass_bins,
    fit,
    least_probability,
    out_of_fold,
    precision_thresholds,
    ramps,
    wilson,
)
from isosim.fitting.publication import Fit
from isosim.fitting.recall import at_thresholds
from isosim.jobs.job import JobRequest, LabelledPair
from isosim.jobs.posted import Posted
from isosim.scoring.pair_features import PairMap
from isosim.scoring.probability import ProbabilityMap, evidence, parts, smooth_targets
from tests.core.scoring.references import REFERENCE
from tests.stores import domains_of
from tests.text import sentences

ONE_SLOPE = np.array([0.9])  # one interval: Platt's line


def truth(similarities: Doubles) -> Doubles:
    """Probability of a match in these tests."""
    return expit(1.2 * evidence(REFERENCE.false_match_rate(similarities)) - 3)


def draw(count: int, seed: int = 0) -> tuple[Doubles, Doubles]:
    """Similarities (N,) and labels (N,) that follow the truth."""
    rng = np.random.default_rng(seed)
    similarities = rng.uniform(-0.2, 0.7, count)
    return similarities, (rng.random(count) < truth(similarities)).astype(np.float64)


def simulated(count: int, curve: Any, seed: int = 0) -> tuple[Doubles, Doubles, Doubles]:
    """Evidence, labels that follow a curve over it, and weights of 1. (N,)"""
    rng = np.random.default_rng(seed)
    x = rng.normal(6, 3, count)
    return x, (rng.random(count) < curve(x)).astype(np.float64), np.ones(count)


def test_the_fewer_the_labels_the_further_their_targets_stay_from_certainty() -> None:
    targets = smooth_targets(np.array([1.0, 0.0, 0.5]), np.array([2.0, 6.0, 2.0]))
    np.testing.assert_allclose(targets, [4 / 5, 1 / 9, (4 / 5 + 1 / 9) / 2])


@given(arrays(np.float64, 20, elements=st.floats(-30, 30)), st.integers(1, 8))
def test_ramps_add_up_to_the_distance_from_the_first_knot(x: Doubles, count: int) -> None:
    knots = np.linspace(-5, 7, count + 1)
    reached = ramps(x, knots)
    assert reached.shape == (20, count)
    np.testing.assert_allclose(reached.sum(1), x + 5, atol=1e-9)
    inside = ramps(knots, knots)
    np.testing.assert_allclose(inside, np.tril(np.full((count + 1, count), 12 / count), -1), atol=1e-9)


def test_with_many_labels_one_part_is_plain_logistic_regression() -> None:
    x, y, weights = simulated(20_000, lambda x: expit(x - 7))
    plain = LogisticRegression(C=np.inf).fit(x[:, None], y)
    asked = np.linspace(0, 12, 30)
    probabilities = bending_line(x, y, weights, ONE_SLOPE)(asked)
    np.testing.assert_allclose(probabilities, plain.predict_proba(asked[:, None])[:, 1], atol=5e-3)


def test_a_bending_line_finds_a_plateau_that_one_part_cannot() -> None:
    def plateau(x: Doubles) -> Doubles:
        return np.minimum(expit(2 * (x - 4)), 0.6)

    x, y, weights = simulated(5000, plateau)
    asked = np.linspace(1, 11, 50)
    bent, straight = (bending_line(x, y, weights, slopes)(asked) for slopes in (SLOPES, ONE_SLOPE))
    assert np.abs(bent - plateau(asked)).mean() < 0.04
    assert np.abs(straight - plateau(asked)).mean() > 0.08


def test_few_labels_leave_the_slope_near_what_is_expected() -> None:
    """Twenty labels that a step would split: a slope without limit, were it not for the prior."""
    x = np.linspace(5, 6, 20)
    probabilities = bending_line(x, (x > 5.5).astype(np.float64), np.ones(20), ONE_SLOPE)(np.array([5.0, 6.0]))
    slope = float(np.diff(np.log(probabilities / (1 - probabilities)))[0])
    assert 0.6 < slope < 1.2


NEARLY_TIED = (np.array([1e-129, 0.0, *[-1.0] * 28]), np.array([0.0, *[1.0] * 29]))


@given(arrays(np.float64, 30, elements=st.floats(-5, 15)), arrays(np.float64, 30, elements=st.sampled_from([0, 1])))
@example(*NEARLY_TIED)
@settings(max_examples=60)
def test_a_curve_never_falls_and_never_states_certainty(x: Doubles, y: Doubles) -> None:
    assume(0 < y.sum() < 30)
    asked = np.linspace(-20, 30, 400)
    probabilities = bending_line(x, y, np.ones(30))(asked)
    assert (np.diff(probabilities) >= -1e-12).all()
    assert ((probabilities >= 1 / 64) & (probabilities <= 63 / 64)).all()


@given(
    arrays(np.float64, 30, elements=st.floats(-5, 15)),
    arrays(np.float64, 30, elements=st.sampled_from([0, 1])),
    arrays(np.int64, 30, elements=st.integers(1, 4)),
)
@settings(max_examples=60)
def test_a_weight_counts_like_so_many_pairs(x: Doubles, y: Doubles, weights: npt.NDArray[np.int64]) -> None:
    asked = np.linspace(-5, 15, 50)
    weighted = bending_line(x, y, weights.astype(np.float64), ONE_SLOPE)(asked)
    repeated = bending_line(np.repeat(x, weights), np.repeat(y, weights), np.ones(weights.sum()), ONE_SLOPE)(asked)
    clip = least_probability(len(x))  # depends on the number of labels, not on their weights
    np.testing.assert_allclose(weighted, np.clip(repeated, clip, 1 - clip), atol=2e-3)


@given(arrays(np.float64, st.integers(20, 200), elements=st.sampled_from([0, 0.5, 1])), st.integers(0, 99))
def test_folds_hold_every_pair_once_and_every_label_evenly(targets: Doubles, seed: int) -> None:
    folds = list(parts(targets, np.random.default_rng(seed)))
    tests = np.array([test for _, test in folds])
    assert (tests.sum(0) == 1).all()
    assert all((train ^ test).all() for train, test in folds)
    for label in np.unique(targets):
        held = tests[:, targets == label].sum(1)
        assert held.max() - held.min() <= 1


def test_labels_of_pure_chance_are_reported_as_worth_nothing() -> None:
    """In-sample figures would look better than a coin."""
    losses = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(6, 3, 60), rng.permutation(60) % 2.0
        p = out_of_fold(x, y.astype(np.float64), np.ones(len(x)), rng)
        losses.append(float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean()))
    assert np.mean(losses) > np.log(2)


@given(st.integers(1, 400), st.data())
def test_wilson_is_wilsons(count: int, data: st.DataObject) -> None:
    matches = data.draw(st.integers(0, count))
    expected = binomtest(matches, count).proportion_ci(method="wilson")
    low, high = wilson(np.array([matches / count]), np.array([float(count)]))
    assert (low[0], high[0]) == (pytest.approx(expected.low, abs=1e-9), pytest.approx(expected.high, abs=1e-9))


@given(st.integers(20, 300), st.integers(2, 15))
def test_bins_hold_equal_numbers_and_every_pair(count: int, bins: int) -> None:
    rng = np.random.default_rng(count)
    p, y = rng.random(count), (rng.random(count) < 0.5).astype(np.float64)
    predicted, observed, counts, _ = equal_mass_bins(p, y, bins, np.ones(len(p)))
    assert counts.sum() == count
    assert np.ptp(counts) <= 1
    assert (np.diff(predicted) > 0).all()
    assert counts @ observed == pytest.approx(y.sum())
    assert counts @ predicted == pytest.approx(p.sum())


sorted_pairs = st.lists(st.tuples(st.integers(-20, 20), st.floats(0, 1), st.integers(0, 3)), min_size=1, max_size=60)


@given(sorted_pairs)
def test_a_precision_threshold_is_the_lowest_similarity_that_keeps_it(pairs: list[tuple[int, float, int]]) -> None:
    similarities = -np.sort(-np.array([pair[0] / 20 for pair in pairs]))
    probabilities = expit(3 * similarities + pairs[0][1])
    weights = np.array([float(pair[2]) for pair in pairs])
    for level, threshold in zip(LEVELS, precision_thresholds(similarities, probabilities, weights), strict=True):
        kept = {
            s: float(weights[similarities >= s] @ probabilities[similarities >= s]) / weights[similarities >= s].sum()
            for s in set(similarities.tolist())
            if weights[similarities >= s].sum() >= FEWEST_ABOVE
        }
        if any(abs(mean - level) < 1e-9 for mean in kept.values()):
            continue
        reaching = [s for s, mean in kept.items() if mean >= level]
        assert (np.isnan(threshold) and not reaching) or threshold == min(reaching)


@pytest.fixture(scope="module")
def taught() -> tuple[ProbabilityMap, ProbabilityReport]:
    return fit(*_arguments(1500), seed=0)


def _arguments(count: int, seed: int = 0) -> tuple[Doubles, Any, Doubles]:
    similarities, labels = draw(count, seed)
    return similarities, REFERENCE, labels


def test_a_map_learns_the_probability_that_made_its_labels(taught: tuple[ProbabilityMap, ProbabilityReport]) -> None:
    model, _ = taught
    asked = np.linspace(-0.2, 0.7, 200)
    off = np.abs(model.probability(REFERENCE.false_match_rate(asked)) - truth(asked))
    assert off.mean() < 0.02
    assert off.max() < 0.08
    assert (model.pairs, model.low, model.high, model.graded) == (1500, 0.0, 1.0, False)


@pytest.mark.parametrize("precision", [0.6, 0.8, 0.9, 0.95])
def test_pairs_above_a_precision_threshold_are_matches_in_this_share(
    taught: tuple[ProbabilityMap, ProbabilityReport], precision: float
) -> None:
    threshold, low, high = taught[0].precision_threshold(precision)
    similarities, labels = draw(100_000, seed=1)
    assert labels[similarities >= threshold].mean() == pytest.approx(precision, abs=0.03)
    grid = np.linspace(-0.2, 0.699, 3000)
    exact = grid[np.argmax([truth(grid[grid >= s]).mean() >= precision for s in grid])]
    assert low <= exact <= high
    assert 0.005 < high - low < 0.1


def test_the_recall_of_a_precision_threshold_is_that_of_other_pairs(
    taught: tuple[ProbabilityMap, ProbabilityReport],
) -> None:
    similarities, labels = draw(100_000, seed=1)
    for precision in (0.6, 0.8, 0.9):
        threshold, _, _ = taught[0].precision_threshold(precision)
        recall, low, high = taught[0].recall(precision)
        assert low <= labels[similarities >= threshold].sum() / labels.sum() <= high
        assert low < recall <= high
        interval = taught[0].precision_interval(precision)
        assert interval[0] <= labels[similarities >= threshold].mean() <= interval[1]
        assert interval[0] < precision < interval[1]


def test_weights_give_the_population_back_that_a_biased_sample_was_drawn_from(
    taught: tuple[ProbabilityMap, ProbabilityReport],
) -> None:
    similarities, labels = draw(60_000, seed=5)
    chance = np.where(labels == 1, 5.0, 1.0)
    rows = np.random.default_rng(6).choice(len(labels), 1500, p=chance / chance.sum())
    biased, _ = fit(similarities[rows], REFERENCE, labels[rows], 0)
    weighted, report = fit(similarities[rows], REFERENCE, labels[rows], 0, 1 / chance[rows])
    asked = REFERENCE.false_match_rate(np.linspace(-0.2, 0.7, 200))
    off, before = (
        np.abs(model.probability(asked) - taught[0].probability(asked)).mean() for model in (weighted, biased)
    )
    assert off < 0.04 < before
    assert report.positives == pytest.approx(labels.mean(), abs=0.03)
    assert weighted.precision_threshold(0.8)[0] == pytest.approx(taught[0].precision_threshold(0.8)[0], abs=0.05)


def test_the_report_is_ready_for_json_and_close_to_what_other_pairs_show(
    taught: tuple[ProbabilityMap, ProbabilityReport],
) -> None:
    model, report = taught
    json.dumps(asdict(report), allow_nan=False)
    similarities, labels = draw(100_000, seed=2)
    p = model.probability(REFERENCE.false_match_rate(similarities))
    assert report.brier == pytest.approx(((p - labels) ** 2).mean(), rel=0.15)
    assert report.log_loss == pytest.approx(-np.log(np.where(labels == 1, p, 1 - p)).mean(), rel=0.15)
    assert report.positives == pytest.approx(labels.mean(), abs=0.03)
    assert sum(row.pairs for row in report.reliability) == report.pairs == 1500
    assert all(row.low <= row.observed <= row.high for row in report.reliability)


def test_grades_teach_their_mean() -> None:
    rng = np.random.default_rng(0)
    similarities = rng.uniform(-0.2, 0.7, 600)
    grades = np.clip(5 * truth(similarities) + rng.normal(0, 0.4, 600), 0, 5)
    model, report = fit(similarities, REFERENCE, grades, seed=0, graded=True)
    asked = np.linspace(0.0, 0.6, 100)
    assert np.abs(model.probability(REFERENCE.false_match_rate(asked)) - truth(asked)).mean() < 0.03
    assert model.graded
    assert (model.low, model.high) == (0, 5)
    assert len(model.precisions) == 0
    assert report.rmse == pytest.approx(0.36, abs=0.06)
    assert report.pearson is not None
    assert report.pearson > 0.95
    assert (report.brier, report.log_loss, report.positives) == (None, None, None)
    assert all(row.low <= row.observed <= row.high for row in report.reliability)


def test_one_seed_teaches_one_map() -> None:
    (one, report), (again, report_again), (other, _) = (fit(*_arguments(80), seed=seed) for seed in (3, 3, 4))
    assert report == report_again
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name])
    np.testing.assert_array_equal(one.logits, other.logits)  # the seed is for intervals and errors only
    assert not np.array_equal(one.interval_low, other.interval_low)


tied = st.lists(st.sampled_from([-1.0, 0.0, 0.3, 0.30000001, 1.0]), min_size=20, max_size=60)


@settings(max_examples=5)
@given(tied | st.lists(st.floats(-1, 1), min_size=20, max_size=60), st.sampled_from([1, 2, 5]), st.booleans())
def test_any_labels_make_a_map_that_can_be_stored(similarities: list[float], every: int, graded: bool) -> None:
    labels = (np.arange(len(similarities)) % (every + 1) == 0) * (2.5 if graded else 1.0)
    model, report = fit(np.array(similarities), REFERENCE, labels, seed=0, graded=graded)
    ProbabilityMap.from_arrays(model.arrays())
    json.dumps(asdict(report), allow_nan=False)


def test_weights_of_one_score_leave_the_curve_as_it_is() -> None:
    """Pairs drawn by score alone have the same share of matches at each score, drawn often or not."""
    similarities, labels = draw(1500, seed=8)
    weights = np.where(similarities > 0.3, 1.0, 300.0)
    plain, weighted = (fit(similarities, REFERENCE, labels, 0, w)[0] for w in (None, weights))
    asked = REFERENCE.false_match_rate(np.linspace(-0.1, 0.6, 50))
    assert np.abs(plain.probability(asked) - weighted.probability(asked)).max() < 0.06


def test_equal_weights_are_no_weights() -> None:
    similarities, labels = draw(100, seed=9)
    even, plain = (fit(similarities, REFERENCE, labels, 0, w)[0] for w in (np.full(100, 1.7e308), None))
    np.testing.assert_array_equal(even.logits, plain.logits)


@given(st.integers(1, 200), st.integers(0, 1000))
def test_a_threshold_below_all_matches_finds_them_all_and_no_more(count: int, seed: int) -> None:
    weights = np.random.default_rng(seed).uniform(0.1, 9, count)
    one = np.ones(count)
    recall, low, high, *_ = at_thresholds(np.array([-1.0]), np.linspace(0, 1, count), one, weights, one[:1])
    assert recall[0] == pytest.approx(1)
    assert low[0] < recall[0] <= high[0] <= 1


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("what", "at", "count"),
    [("recall", 0.35, 100), ("recall", 0.35, 1000), ("precision", 0.3, 300), ("precision", 0.4, 300)],
)
def test_the_interval_of_a_recall_or_a_precision_covers_the_truth(
    what: str, at: float, count: int, weighted: bool
) -> None:
    """In 400 samples. The weighted samples hold more high-scoring pairs than the population does."""
    similarities, labels = draw(50_000, seed=3)
    passing = similarities >= at
    true = labels[passing].sum() / labels.sum() if what == "recall" else labels[passing].mean()
    chance = 0.2 + 0.8 * expit(10 * (similarities - 0.3)) if weighted else np.ones(len(similarities))
    chance /= chance.sum()
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        rows = rng.choice(len(similarities), count, p=chance)
        stated = labels[rows][passing[rows]].mean()
        own = similarities[rows], labels[rows], 1 / chance[rows]
        found = at_thresholds(np.array([at]), *own, np.array([stated]))
        low, high = found[1:3] if what == "recall" else found[-2:]
        assert what == "recall" or low[0] <= stated <= high[0]
        covered += bool(low[0] <= true <= high[0])
    assert 0.90 <= covered / 400 <= (0.985 if what == "recall" else 0.99)


def test_heavy_pairs_without_a_match_widen_the_interval_of_a_recall() -> None:
    """What they stand for may hold matches that no draw has met."""
    similarities = np.linspace(1, 0, 200)
    labels = (similarities > 0.75).astype(np.float64)
    heavy = np.where(similarities < 0.5, 1000.0, 1.0)
    at = np.array([0.7])
    bounds = [at_thresholds(at, similarities, labels, w, at).recall_low[0] for w in (np.ones(200), heavy)]
    assert bounds[0] > 0.9
    assert bounds[1] < 0.1


COUNT = 400


def pairs(*, helpful: bool) -> tuple[probability.LabelledScores, Doubles, Doubles]:
    """Labels that depend on the evidence, and where features help also on `numbers_differ`."""
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, COUNT)
    features = np.column_stack([rng.random((COUNT, 2)), rng.random((COUNT, 2)) < 0.3]).astype(np.float64)
    logits = x - 3 - 4 * features[:, 2] * helpful
    labels = (rng.random(COUNT) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    return probability.LabelledScores.build(np.tanh(x / 9), labels), x, features


def test_features_that_help_are_used() -> None:
    labelled, x, features = pairs(helpful=True)
    found, report = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    assert found.moves[2] < -2
    rates = np.full(2, 0.05)
    same, other = found.probability(rates, np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 1, 0]]))
    assert same > other + 0.3
    assert report.loss < report.rival_loss


def test_features_that_do_not_help_are_left_out() -> None:
    assert pair_map.fit(*pairs(helpful=False), 0)[0] is None


def test_thresholds_by_precision_are_probabilities_as_they_are_served() -> None:
    labelled, x, features = pairs(helpful=True)
    found, _ = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    served = found.probability(1 / (1 + np.exp(x)), features)
    for precision in (0.7, 0.9):
        probability, low, high = found.curve.precision_threshold(precision)
        passing = served >= probability - 1e-9
        assert low <= probability <= high
        assert served[passing].mean() == pytest.approx(precision, abs=0.01)  # as the map itself says
        assert found.curve.recall(precision)[0] == pytest.approx(labelled.labels[passing].sum() / labelled.labels.sum())


def test_a_stored_map_gives_the_same_probabilities() -> None:
    labelled, x, features = pairs(helpful=True)
    found, _ = pair_map.fit(labelled, x, features, 0)
    assert found is not None
    again = PairMap.from_arrays(found.arrays())
    rates = 1 / (1 + np.exp(x))
    np.testing.assert_allclose(evidence(rates), x)
    assert (again.probability(rates, features) == found.probability(rates, features)).all()


def test_a_job_learns_from_the_texts_of_labelled_pairs(tiny: EncoderArtifact, tmp_path: Path) -> None:
    """Other texts and other numbers are no matches."""
    every = sentences(600)
    labels = [
        LabelledPair(f"7 {text}", f"{every[row + (row % 4 == 3)]} {7 + (row % 4 == 1)}", float(row % 2 == 0))
        for row, text in enumerate(every[:200])
    ]
    request = JobRequest("d", tiny.digest, tiny.id, method="identity")

    def learnt(count: int) -> Fit:
        inputs = Posted(every, labels[:count])
        return calibrate_job(request, inputs, tiny, domains_of(tmp_path), lambda _, __: None, threads=1)

    enough = learnt(200)
    assert enough.model.pair_map is not None
    assert enough.report["labels"]["pair_features"]
    few = learnt(90)
    assert few.model.pair_map is None
    assert few.report["labels"]["pair_features"] is None
