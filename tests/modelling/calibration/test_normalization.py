"""Fitting item normalization: the cohort, and whether its reference holds on other sentences."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.arrays import Doubles, Vectors
from isosim.fitting.normalization import FEWEST_MEMBERS, NEAREST, Clusters, fit, usual_scores
from isosim.fitting.reference import folds, sample_pairs
from isosim.scoring.normalization import KINDS, CohortStatistics, ItemNormalization, cohort_statistics, normalize
from isosim.scoring.similarity import cosine, normalized


def latents(count: int, seed: int, dim: int = 24) -> Vectors:
    """Topics, and hubs: a direction that all share, each to its own degree."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(0).standard_normal((30, dim))
    x = topics[rng.integers(0, 30, count)] + 1.5 * rng.standard_normal((count, dim))
    x[:, 0] += rng.gamma(1.0, 3.0, count)
    return x.astype(np.float32)


def all_of(x: Vectors) -> list[tuple[Vectors, npt.NDArray[np.intp]]]:
    return [(x, np.arange(len(x)))]


def pair_scores(n: ItemNormalization, x: Vectors) -> tuple[Doubles, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Scores of all pairs of x (N, D), as `n.score` gives them, and which pairs they are."""
    i, j = np.triu_indices(len(x), 1)
    unit, usually = normalized(x), n.cohort_statistics(x)
    return normalize(n.kind, (unit @ unit.T)[i, j], usually[i], usually[j]), i, j


@settings(max_examples=25)
@given(st.integers(1, 400), st.integers(1, 80), st.integers(0, 5))
def test_every_sentence_is_in_one_cluster_and_none_is_too_small(count: int, wanted: int, seed: int) -> None:
    unit = normalized(latents(count, seed))
    clusters = Clusters.from_vectors(unit, min(wanted, count), np.random.default_rng(seed))
    sizes = np.bincount(clusters.labels, minlength=len(clusters.sums))
    assert sizes.sum() == count
    assert len(sizes) == len(clusters.sums) <= wanted
    assert sizes.min() >= min(FEWEST_MEMBERS, count)
    for cluster in range(len(sizes)):
        np.testing.assert_allclose(clusters.sums[cluster], unit[clusters.labels == cluster].sum(0), atol=1e-4)


def test_the_clusters_hold_what_is_alike() -> None:
    unit = normalized(latents(600, 0))
    clusters = Clusters.from_vectors(unit, 40, np.random.default_rng(0))
    assert len(clusters.sums) >= 30
    same = clusters.labels[:, None] == clusters.labels
    cosines = unit @ unit.T
    assert cosines[same].mean() > cosines[~same].mean() + 0.2


@pytest.mark.parametrize("number", [1, 4])
def test_a_sentences_usual_score_does_not_count_the_sentence_itself(number: int) -> None:
    x = latents(200, 0)
    unit = normalized(x)
    clusters = Clusters.from_vectors(unit, 12, np.random.default_rng(0))
    cohort = normalized(clusters.sums)
    own = x + 0.1 * latents(200, 1)  # as if by the maps of folds
    groups = [(own[part], part) for part in folds(200, number, np.random.default_rng(0))]
    scores = usual_scores(groups, unit, clusters, cohort, 5)
    for row in range(0, 200, 7):
        rest = np.flatnonzero((clusters.labels == clusters.labels[row]) & (np.arange(200) != row))
        without = cohort.copy()
        without[clusters.labels[row]] = normalized(unit[rest].sum(0, keepdims=True))[0]
        expected = cohort_statistics((normalized(own[[row]]) @ without.T), 5)
        assert scores.mean[row] == pytest.approx(expected.mean[0], abs=1e-5)
        assert scores.spread[row] == pytest.approx(expected.spread[0], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_threshold_has_its_rate_on_other_sentences(kind: str) -> None:
    """Nearer to it than one taken from sentences that are part of their own cohort."""
    rates, naive = [], []
    for seed in range(8):
        x, others = latents(500, seed), latents(500, 100 + seed)
        n = fit(kind, x, all_of(x), np.random.default_rng(seed))
        scores = pair_scores(n, others)[0]
        rates.append((scores >= n.reference.threshold(0.01)).mean())
        naive.append((scores >= np.quantile(pair_scores(n, x)[0], 0.99)).mean())
    assert np.mean(rates) == pytest.approx(0.01, rel=0.2)
    assert abs(np.mean(rates) - 0.01) < 0.7 * abs(np.mean(naive) - 0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_hubs_pass_a_threshold_less_often(kind: str) -> None:
    """The spread over sentences of the share of partners above the threshold of 1 %."""
    x, others = latents(500, 0), latents(500, 100)
    n = fit(kind, x, all_of(x), np.random.default_rng(0))
    scores, i, j = pair_scores(n, others)
    unit = normalized(others)

    def spread(values: Doubles) -> float:
        above = values >= np.quantile(values, 0.99)
        return float(np.bincount(np.concatenate([i[above], j[above]]), minlength=len(others)).std())

    assert spread(scores) < 0.6 * spread((unit @ unit.T)[i, j].astype(np.float64))


def test_a_pairs_scores_are_made_of_its_own_two_sentences() -> None:
    """With cross-fitted latents in folds, as the reference counts them."""
    x = latents(90, 0)
    groups = [(2 * x[part], part) for part in folds(90, 3, np.random.default_rng(1))]
    n = fit("csls", x, groups, np.random.default_rng(2), centroids=4)
    rng = np.random.default_rng(2)
    clusters = Clusters.from_vectors(normalized(x), 4, rng)
    usually: CohortStatistics = usual_scores(groups, normalized(x), clusters, n.cohort, n.nearest)
    pairs = sample_pairs(groups, rng)
    scores = normalize("csls", cosine(x[pairs.left], x[pairs.right]), usually[pairs.left], usually[pairs.right])
    assert n.reference.pairs == len(scores)
    assert n.reference.sentences == 90
    for rate in (0.5, 0.2, 0.1):
        assert (scores >= n.reference.threshold(rate)).mean() == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [20, 60, 700])
def test_the_cohort_is_as_large_as_the_text_allows(kind: str, count: int) -> None:
    x = latents(count, 0)
    n = fit(kind, x, all_of(x), np.random.default_rng(0), centroids=32)
    assert 1 <= len(n.cohort) <= min(32, count // 10)
    assert n.nearest == min(NEAREST[kind], len(n.cohort))
    assert fit(kind, x, all_of(x), np.random.default_rng(0), nearest=1).nearest == 1


def test_a_fit_is_the_same_each_time_for_one_seed() -> None:
    x = latents(150, 0)
    one, again, other = (fit("as-norm", x, all_of(x), np.random.default_rng(seed)).arrays() for seed in (0, 0, 1))
    for name, array in one.items():
        np.testing.assert_array_equal(array, again[name])
    assert one["cohort"].shape != other["cohort"].shape or not np.array_equal(one["cohort"], other["cohort"])


def test_an_unknown_kind_and_too_few_sentences_are_refused() -> None:
    x = latents(19, 0)
    with pytest.raises(ValueError, match="'t-norm'"):
        fit("t-norm", x, all_of(x), np.random.default_rng(0))
    with pytest.raises(ValueError, match="at least 20 sentences"):
        fit("csls", x, all_of(x), np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # fewer points than clusters
def test_sentences_that_are_all_alike_make_a_cohort_of_one() -> None:
    x = np.tile(latents(1, 0), (40, 1))
    n = fit("as-norm", x, all_of(x), np.random.default_rng(0))
    assert np.isfinite(n.score(x, np.arange(2), np.arange(2, 4), np.ones(2))).all()
    np.testing.assert_allclose(n.cohort[0], normalized(x)[0], atol=1e-6)
