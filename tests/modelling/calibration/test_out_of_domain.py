"""Fitting the out-of-domain test: false alarms on text it has not seen, and what it finds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier

from isosim.arrays import Integers, Vectors
from isosim.fitting.out_of_domain import (
    FEWEST,
    Moments,
    band_edges,
    fit,
    ridge_weights,
    shuffled_copies,
    upper_curve,
)
from isosim.scoring.out_of_domain import FALSE_ALARMS, DomainTest


def texts(count: int, dim: int, seed: int) -> tuple[Vectors, Integers]:
    """Vectors with a falling spectrum, smaller and less heavy-tailed the longer the text, as those of sentences."""
    rng = np.random.default_rng(seed)
    tokens = np.clip(rng.lognormal(3, 0.5, count), 4, 256).astype(np.intp)
    size = np.exp(rng.standard_normal(count) * 2 / np.sqrt(tokens)) * tokens**-0.25
    spectrum = np.geomspace(1, 0.02, dim)
    x = 0.5 + rng.standard_normal((count, dim)) * spectrum * size[:, None]
    return x.astype(np.float32), tokens


def salad(count: int, dim: int, seed: int) -> Vectors:
    """Texts moved a little in every coordinate: no distance or band shows it, all coordinates together do."""
    x, _ = texts(count, dim, seed)
    moved = np.where(np.arange(dim) % 2 == 0, 0.4, -0.4) * np.geomspace(1, 0.02, dim)
    return (x + moved).astype(np.float32)


def fitted(count: int, dim: int, *, probe: bool = False, seed: int = 0) -> DomainTest:
    x, tokens = texts(count, dim, seed)
    return fit(x, tokens, salad(1000, dim, seed + 1000) if probe else None, np.random.default_rng(seed))


@pytest.mark.parametrize(("own", "other", "width"), [(300, 300, 40), (400, 60, 24)])
def test_the_probes_weights_are_scikit_learns(own: int, other: int, width: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(own + other, width)).astype(np.float32)
    labels = np.arange(own + other) >= own
    features[labels] += 0.3 * rng.normal(size=width).astype(np.float32)
    model = RidgeClassifier(alpha=50.0, class_weight="balanced", solver="cholesky").fit(features, labels)
    expected = model.coef_.ravel()
    np.testing.assert_allclose(ridge_weights(features, labels, 50.0), expected, atol=1e-5 * np.abs(expected).max())


def alarms(test: DomainTest, x: Vectors, tokens: Integers) -> float:
    return float((test.judge(x, tokens) < FALSE_ALARMS).mean())


@pytest.mark.parametrize(("count", "dim"), [(4000, 8), (1000, 32), (3000, 128)])
@pytest.mark.parametrize("probe", [False, True])
def test_one_in_a_hundred_unseen_texts_is_a_false_alarm(count: int, dim: int, probe: bool) -> None:
    tests = [fitted(count, dim, probe=probe, seed=seed) for seed in range(4)]
    rates = [alarms(test, *texts(10_000, dim, 50 + seed)) for seed, test in enumerate(tests)]
    assert 0.005 <= np.mean(rates) <= 0.015


def test_p_values_of_unseen_texts_are_uniform() -> None:
    p_values = fitted(4000, 32).judge(*texts(20_000, 32, 77))
    for level in (0.003, 0.05, 0.2, 0.5, 0.8):
        assert (p_values < level).mean() == pytest.approx(level, rel=0.12, abs=0.0015)


def test_short_and_long_texts_are_flagged_alike() -> None:
    """Their distances are not: short ones lie farther out, with a longer tail."""
    rates = []
    for seed in range(3):
        x, tokens = texts(30_000, 32, 60 + seed)
        flags = fitted(6000, 32, seed=seed).judge(x, tokens) < FALSE_ALARMS
        fifths = np.array_split(np.argsort(tokens, kind="stable"), 5)
        rates.append([flags[fifth].mean() for fifth in fifths])
    means = np.mean(rates, axis=0)
    assert means.min() >= 0.006
    assert means.max() <= 0.0145


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_vectors_far_out_and_vectors_near_the_mean_are_both_found(factor: float) -> None:
    x, tokens = texts(500, 32, 9)
    odd = (0.5 + factor * (x - 0.5)).astype(np.float32)
    assert alarms(fitted(2000, 32), odd, tokens) > 0.9


def test_vectors_of_another_shape_but_the_same_distance_are_found_by_their_bands() -> None:
    test = fitted(2000, 64)
    x, tokens = texts(500, 64, 9)
    turned = (0.5 + (x - 0.5)[:, ::-1]).astype(np.float32)
    whitening = test.statistics.whitening.astype(np.float64)
    z_own, z_odd = ((v - test.statistics.mean) @ whitening for v in (x, turned))
    turned = test.statistics.mean + (turned - test.statistics.mean) * (
        np.linalg.norm(z_own, axis=1) / np.linalg.norm(z_odd, axis=1)
    ).reshape(-1, 1)
    judged = test.judge(turned.astype(np.float32), tokens)
    assert (judged < FALSE_ALARMS).mean() > 0.9


def test_the_probe_finds_salad_that_looks_like_text_otherwise() -> None:
    x, (_, tokens) = salad(2000, 64, 31), texts(2000, 64, 31)
    assert alarms(fitted(2000, 64), x, tokens) < 0.1
    assert alarms(fitted(2000, 64, probe=True), x, tokens) > 0.4


def test_levels_of_a_flow_add_what_the_vectors_do_not_show() -> None:
    x, tokens = texts(2000, 16, 0)
    rng = np.random.default_rng(1)
    test = fit(x, tokens, None, rng, levels=rng.normal(0, 0.2, (2000, 2)))
    others, lengths = texts(8000, 16, 3)
    same, shifted = rng.normal(0, 0.2, (8000, 2)), rng.normal([0, 2], 0.2, (8000, 2))
    assert (test.judge(others, lengths, same) < FALSE_ALARMS).mean() == pytest.approx(0.01, abs=0.006)
    assert (test.judge(others, lengths, shifted) < FALSE_ALARMS).mean() > 0.95


@pytest.mark.parametrize("probe", [False, True])
def test_dimensions_that_say_nothing_raise_no_alarms_until_something_shows_there(probe: bool) -> None:
    rng = np.random.default_rng(4)
    basis = rng.standard_normal((12, 40)).astype(np.float32)

    def flat(count: int, seed: int) -> tuple[Vectors, Integers]:
        x, tokens = texts(count, 12, seed)
        return x @ basis, tokens

    x, tokens = flat(1500, 0)
    test = fit(x, tokens, salad(500, 12, 1) @ basis if probe else None, rng)
    others, lengths = flat(10_000, 1)
    assert 0.003 <= alarms(test, others, lengths) <= 0.02
    off = others + rng.standard_normal(others.shape).astype(np.float32)
    assert alarms(test, off, lengths) > 0.95


def test_texts_of_one_length_make_a_test() -> None:
    x, _ = texts(1500, 16, 0)
    test = fit(x, np.full(1500, 9), None, np.random.default_rng(0))
    others, _ = texts(10_000, 16, 1)
    assert alarms(test, others, np.full(10_000, 9)) == pytest.approx(0.01, abs=0.006)
    assert alarms(test, others, np.full(10_000, 300)) == alarms(test, others, np.full(10_000, 9))


def test_a_test_is_the_same_each_time_for_one_seed() -> None:
    first, second = (fitted(1000, 16, probe=True).arrays() for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    x, tokens = texts(1000, 16, 0)
    else_seeded = fit(x, tokens, salad(1000, 16, 1000), np.random.default_rng(1)).arrays()
    assert not np.array_equal(first["final_curve"], else_seeded["final_curve"])


def test_fewer_than_a_thousand_sentences_make_no_test() -> None:
    x, tokens = texts(FEWEST - 1, 8, 0)
    with pytest.raises(ValueError, match="at least 1000"):
        fit(x, tokens, None, np.random.default_rng(0))


@given(st.integers(2, 40), st.integers(2, 40), st.integers(1, 8), st.integers(0, 99))
def test_moments_without_a_part_are_those_of_the_rest(a: int, b: int, dim: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((a + b, dim))
    rest = Moments.from_vectors(x) - Moments.from_vectors(x[:a])
    assert rest.count == b
    np.testing.assert_allclose(rest.total, x[a:].sum(0), atol=1e-9)
    np.testing.assert_allclose(rest.products, x[a:].T @ x[a:], atol=1e-9)
    np.testing.assert_allclose((rest + Moments.from_vectors(x[:a])).products, x.T @ x, atol=1e-9)


def test_whitened_vectors_have_unit_covariance_and_falling_eigenvalues() -> None:
    x, _ = texts(3000, 20, 0)
    mean, whitening = Moments.from_vectors(x.astype(np.float64)).whitening(0.0)
    z = (x - mean) @ whitening
    np.testing.assert_allclose(z.T @ z / len(z), np.eye(20), atol=1e-3)
    assert (np.diff(np.linalg.norm(whitening, axis=0)) > 0).all()


@pytest.mark.parametrize("dim", [1, 8, 24, 100, 384, 768, 1536])
def test_bands_divide_every_width(dim: int) -> None:
    edges = band_edges(dim)
    assert edges[0] == 0
    assert edges[-1] == dim
    assert (np.diff(edges) > 0).all()
    assert len(edges) == 10 or dim < 48


@given(st.integers(0, 99), st.integers(1000, 1200), st.integers(0, 6), st.sampled_from([0.0, 1e-7, 1.0, 1e4]))
def test_a_curve_rises_from_any_sample(seed: int, count: int, decimals: int, spread: float) -> None:
    """Tied values too, and those that are all the same."""
    points, logs = upper_curve(np.round(3 + spread * np.random.default_rng(seed).standard_t(2, count), decimals))
    assert (np.diff(points) > 0).all()
    assert (np.diff(logs) >= 0).all()
    assert logs[0] == 0


def test_the_share_of_new_values_beyond_a_point_is_what_its_curve_says() -> None:
    rng = np.random.default_rng(0)
    for level in (0.01, 0.05, 0.5):
        beyond = []
        for _ in range(400):
            points, logs = upper_curve(rng.standard_exponential(1000))
            beyond.append(np.exp(-np.interp(-np.log(level), logs, points)))
        assert np.mean(beyond) == pytest.approx(level, rel=0.04)


words = st.lists(st.sampled_from(["a", "bc", "dé", "x."]), min_size=0, max_size=9).map(" ".join)


@given(st.lists(words, max_size=12), st.integers(0, 12), st.integers(0, 9))
def test_a_copy_has_its_texts_words_in_another_order(corpus: list[str], count: int, seed: int) -> None:
    copies = shuffled_copies(corpus, count, np.random.default_rng(seed))
    usable = [text for text in corpus if len(text.split()) >= 4 and len(set(text.split())) > 1]
    assert len(copies) == min(count, len(usable))
    left = Counter(" ".join(sorted(text.split())) for text in usable)
    made = Counter(" ".join(sorted(copy.split())) for copy in copies)
    assert made <= left
    assert shuffled_copies(corpus, count, np.random.default_rng(seed)) == copies


@pytest.mark.parametrize("text", ["a a a b", "b a a a", "a b a b", "a bc dé x."])
def test_no_copy_is_its_text(text: str) -> None:
    assert all(shuffled_copies([text], 1, np.random.default_rng(seed)) != [text] for seed in range(30))


def test_a_text_of_one_word_repeated_has_no_copy() -> None:
    assert shuffled_copies(["no no no no"], 1, np.random.default_rng(0)) == []
