"""The measures against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

from isosim.arrays import Vectors
from isosim.fitting import evidence, scripts
from isosim.fitting.evidence import LabelTest, Surface
from isosim.scoring.method import Method
from tests.text import sentences

WORDS = st.text("abcé 東京7.!Q", max_size=30)


METHODS = Method("identity"), Method("sn"), Method("whitening")


def gaussian(count: int, dim: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def test_the_surface_is_words_letters_marks_digits_and_capitals() -> None:
    features = evidence.surface_features(["Ab, 12 c", ""])
    np.testing.assert_allclose(features, [[np.log(3), np.log(8 / 3), 1 / 8, 2 / 8, 1 / 8], [0, 0, 0, 0, 0]])


@given(st.integers(0, 1000))
def test_the_surface_share_is_that_of_a_linear_regression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((60, 5))
    x = features[:, :2] @ rng.standard_normal((2, 8)) + rng.standard_normal((60, 8)) + 3
    residual = x - LinearRegression().fit(features, x).predict(features)
    expected = 1 - np.square(residual).sum() / np.square(x - x.mean(0)).sum()
    assert evidence.surface_share(x, evidence.surface_basis(features)) == pytest.approx(expected)


@pytest.mark.parametrize("used", [1, 3, 10])
@pytest.mark.parametrize("count", [12, 500])
def test_the_participation_ratio_counts_equally_strong_directions(used: int, count: int) -> None:
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((count, 40 if count > 40 else 11))).Q
    x = np.zeros((count, 30))
    centred = directions - directions.mean(0)
    x[:, :used] = np.linalg.svd(centred, full_matrices=False)[0][:, :used]
    assert evidence.participation_ratio(x + 5) == pytest.approx(used)


def test_the_bag_of_words_is_what_random_word_vectors_give_on_average() -> None:
    texts, dim = sentences(300), 64
    basis = evidence.surface_basis(evidence.surface_features(texts))
    tokens = [scripts.TOKEN.findall(text.lower()) for text in texts]
    vocabulary = sorted({token for words in tokens for token in words})
    shares, ratios = [], []
    for seed in range(30):
        table = dict(zip(vocabulary, np.random.default_rng(seed).standard_normal((len(vocabulary), dim)), strict=True))
        x = np.array([np.mean([table[token] for token in words], axis=0) for words in tokens])
        shares.append(evidence.surface_share(x, basis))
        ratios.append(evidence.participation_ratio(x))
    share, ratio = evidence.bag_of_words(texts, basis, dim)
    assert share == pytest.approx(np.mean(shares), rel=0.05)
    assert ratio == pytest.approx(np.mean(ratios), rel=0.05)


@given(st.lists(WORDS, min_size=2, max_size=12), st.integers(0, 100))
def test_any_text_has_finite_surface_evidence(texts: list[str], seed: int) -> None:
    surface = Surface.from_sentences(texts, gaussian(len(texts), 8, seed).astype(np.float64))
    assert all(np.isfinite(v) for v in (*vars(surface).values(), surface.rawness))
    assert 0 <= surface.share <= 1 + 1e-9
    assert surface.rawness >= 0


@given(st.integers(5, 40), st.integers(0, 1000), st.booleans())
def test_a_weighted_score_is_that_of_the_pairs_drawn_out(count: int, seed: int, binary: bool) -> None:
    """With ties, against scipy and scikit-learn."""
    rng = np.random.default_rng(seed)
    similarities = rng.integers(0, 8, count) / 8
    values = rng.integers(0, 2 if binary else 6, count).astype(np.float64)
    weights = rng.multinomial(count, np.full(count, 1 / count), 6).astype(np.float64)
    scores = evidence.bootstrapped(similarities, values, weights, "auroc" if binary else "spearman")
    for weight, value in zip(weights.astype(int), scores, strict=True):
        s, v = np.repeat(similarities, weight), np.repeat(values, weight)
        if np.ptp(v) == 0 or (np.ptp(s) == 0 and not binary):
            assert np.isnan(value)
        else:
            expected = roc_auc_score(v, s) if binary else spearmanr(s, v).statistic
            assert value == pytest.approx(expected, abs=1e-9)


def test_the_paired_bootstrap_tells_a_better_map_from_an_equal_one() -> None:
    rng = np.random.default_rng(0)
    grades = rng.standard_normal(300)
    good, poor = grades + rng.standard_normal(300), grades + 2 * rng.standard_normal(300)
    better, worse, same = METHODS
    test = LabelTest.from_labels({better: good, worse: poor, same: good}, grades, 0)
    assert test.p_not_better(better, worse) < 0.01
    assert test.p_not_better(worse, better) > 0.99
    assert test.p_not_better(same, better) == 1.0
    assert test.gain(better, worse) == pytest.approx(
        spearmanr(good, grades).statistic - spearmanr(poor, grades).statistic
    )


def test_the_bootstrap_finds_a_difference_in_no_more_than_its_share_of_chance_draws() -> None:
    """Two maps that are equally good: one is called better in about 5 % of samples of 100 pairs."""
    called = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        grades = rng.standard_normal(100)
        one, other = (grades + rng.standard_normal(100) for _ in range(2))
        maps = dict(zip(METHODS, (one, other), strict=False))
        called += LabelTest.from_labels(maps, grades, seed).p_not_better(*METHODS[:2]) <= 0.05
    assert 1 <= called <= 11
