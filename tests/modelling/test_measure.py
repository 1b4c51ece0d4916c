"""The reference distribution and what is reported of a space."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.modelling import measure

Floats = npt.NDArray[np.float64]

similarities = arrays(np.float64, st.integers(1, 400), elements=st.floats(-1, 1, width=32)).map(np.sort)
tied = st.lists(st.sampled_from([-0.25, 0.0, 0.5, 0.5000001, 1.0]), min_size=1, max_size=50).map(np.sort)


def bell(count: int) -> Floats:
    return np.sort(np.tanh(np.random.default_rng(0).normal(0.2, 0.15, count)))


@given(similarities | tied, arrays(np.float64, 50, elements=st.floats(-1.5, 1.5)))
def test_percentiles_lie_between_0_and_1_and_never_fall_as_similarity_rises(sample: Floats, asked: Floats) -> None:
    found = measure.reference(sample).percentile(np.sort(np.concatenate([asked, sample])))
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() <= 1


@given(similarities | tied)
def test_the_knots_rise(sample: Floats) -> None:
    reference = measure.reference(sample)
    assert (np.diff(reference.similarities) > 0).all()
    assert (np.diff(reference.probabilities) >= 0).all()
    assert reference.pairs == len(sample)


def test_a_percentile_is_the_share_of_random_pairs_that_score_lower() -> None:
    sample = bell(50_000)
    asked = np.linspace(-0.5, 0.9, 200)
    share = np.searchsorted(sample, asked) / len(sample)
    np.testing.assert_allclose(measure.reference(sample).percentile(asked), share, atol=0.002)


@pytest.mark.parametrize("rate", [0.1, 0.05, 0.01, 0.001])
def test_a_threshold_for_a_false_match_rate_has_that_rate(rate: float) -> None:
    sample = bell(200_000)
    percentile = measure.reference(sample).percentile(np.quantile(sample, [1 - rate]))
    assert 1 - percentile[0] == pytest.approx(rate, rel=0.02)


@given(st.integers(100, 3000), st.integers(0, 2**32 - 1))
def test_a_quantile_of_the_sample_has_its_own_percentile(count: int, seed: int) -> None:
    sample = np.sort(np.random.default_rng(seed).uniform(-1, 1, count))
    wanted = np.linspace(0.01, 0.99, 50)
    found = measure.reference(sample).percentile(np.quantile(sample, wanted))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1 / 400 + 1 / count)


def test_below_and_above_all_random_pairs_the_scale_ends() -> None:
    reference = measure.reference(bell(1000))
    np.testing.assert_array_equal(reference.percentile(np.array([-1.0, 1.0])), [0.0, 1.0])


@given(st.integers(2, 60), st.integers(1, 2000))
def test_no_sentence_is_paired_with_itself(count: int, pairs: int) -> None:
    left, right = measure.random_pairs(count, pairs, np.random.default_rng(0))
    assert len(left) == len(right) == min(pairs, count * (count - 1) // 2)
    assert (left != right).all()
    assert min(left.min(), right.min()) >= 0
    assert max(left.max(), right.max()) < count


def test_of_few_sentences_every_pair_is_taken_once() -> None:
    left, right = measure.random_pairs(30, 1000, np.random.default_rng(0))
    assert len({frozenset(pair) for pair in zip(left.tolist(), right.tolist(), strict=True)}) == 30 * 29 // 2


def test_of_many_sentences_all_are_equally_likely_to_be_paired() -> None:
    left, right = measure.random_pairs(1000, 200_000, np.random.default_rng(0))
    counts = np.bincount(np.concatenate([left, right]), minlength=1000)
    assert counts.mean() == 400
    assert counts.std() == pytest.approx(20, rel=0.2)  # Poisson: √400


def test_random_similarities_are_the_cosines_in_rising_order() -> None:
    x = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = np.sort((unit @ unit.T)[np.triu_indices(200, 1)])
    found = measure.random_similarities(x, np.random.default_rng(0))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_scale_that_holds_has_no_threshold_error() -> None:
    percentiles = (np.arange(100_000) + 0.5) / 100_000
    assert measure.threshold_error(percentiles) == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_the_threshold_error_is_the_logarithm_of_the_factor_a_rate_is_off_by(factor: float) -> None:
    rates = (np.arange(100_000) + 0.5) / 100_000 / factor
    assert measure.threshold_error(1 - rates) == pytest.approx(abs(np.log(factor)), abs=0.01)


@given(arrays(np.float64, st.integers(1, 500), elements=st.floats(0, 1)))
def test_a_threshold_error_is_finite_and_never_negative(percentiles: Floats) -> None:
    assert 0 <= measure.threshold_error(percentiles) < np.inf


def test_the_report_of_a_space_tells_a_crowded_one_from_a_spread_one() -> None:
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((2000, 32)).astype(np.float32)
    crowded = spread + 5 * np.float32(rng.standard_normal(32))
    wide, narrow = measure.space(spread, rng), measure.space(crowded, rng)
    assert wide["mean_random_cosine"] < 0.01 < 0.9 < narrow["mean_random_cosine"]
    assert wide["effective_rank"] == pytest.approx(32, abs=0.5)
    assert narrow["effective_rank"] < 20
    assert narrow["singular_spectrum"][0] == 1.0
    assert narrow["singular_spectrum"] == sorted(narrow["singular_spectrum"], reverse=True)
