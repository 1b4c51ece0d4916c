"""Building a reference: which pairs are taken, the tail, and how sure it is."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Doubles, Rows, Vectors
from isosim.fitting.reference import Pairs, build, fit_tail, folds, pareto, sample_pairs
from isosim.scoring.reference import ReferenceDistribution


def latents(count: int, dim: int = 8, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def in_folds(count: int, number: int) -> tuple[Vectors, list[tuple[Vectors, Rows]]]:
    x = latents(count)
    return x, [(x[part], part) for part in folds(count, number, np.random.default_rng(1))]


def taken(pairs: Pairs) -> Counter[frozenset[int]]:
    return Counter(frozenset(pair) for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))


@given(st.integers(1, 200), st.integers(1, 12))
def test_folds_are_disjoint_hold_everything_and_differ_by_one_at_most(count: int, number: int) -> None:
    parts = folds(count, number, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    sizes = [len(part) for part in parts]
    assert len(parts) == number
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("number", [1, 3])
def test_of_few_sentences_every_pair_within_a_fold_is_taken_once(number: int) -> None:
    _, groups = in_folds(31, number)
    pairs = sample_pairs(groups, np.random.default_rng(0))
    expected = {frozenset((i, j)) for _, part in groups for i in part.tolist() for j in part.tolist() if i != j}
    assert taken(pairs).keys() == expected
    assert set(taken(pairs).values()) == {1}
    assert pairs.sentences == 31


@pytest.mark.parametrize("most", [100, 1000, 3000])
@pytest.mark.parametrize("number", [1, 4])
def test_of_many_sentences_a_sample_is_taken_in_which_all_stand_equally_often(most: int, number: int) -> None:
    _, groups = in_folds(200, number)
    pairs = sample_pairs(groups, np.random.default_rng(0), most)
    assert max(taken(pairs).values()) == 1  # no pair twice
    assert min(len(pair) for pair in taken(pairs)) == 2  # none with itself
    counts = np.bincount(np.concatenate([pairs.left, pairs.right]), minlength=200)
    assert counts.min() == counts.max()
    assert len(pairs.similarities) == pytest.approx(max(most, 200), abs=100)
    fold_of = {sentence: n for n, (_, part) in enumerate(groups) for sentence in part.tolist()}
    assert all(fold_of[i] == fold_of[j] for i, j in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))


@pytest.mark.parametrize("most", [500, 100_000])
def test_a_pairs_similarity_is_the_cosine_of_the_two_it_names(most: int) -> None:
    x, groups = in_folds(100, 3)
    pairs = sample_pairs(groups, np.random.default_rng(0), most)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(pairs.similarities, (unit[pairs.left] * unit[pairs.right]).sum(1), atol=1e-6)


def test_neighbours_in_the_file_are_no_likelier_to_be_paired() -> None:
    x = latents(2000)
    pairs = sample_pairs([(x, np.arange(2000))], np.random.default_rng(0), most=20_000)
    apart = np.abs(pairs.left - pairs.right)
    near = (np.minimum(apart, 2000 - apart) <= 20).mean()
    assert near == pytest.approx(40 / 1999, rel=0.3)


@pytest.mark.parametrize(("shape", "scale"), [(0.0, 0.05), (0.2, 0.1), (0.5, 1.0)])
def test_a_pareto_tail_is_recovered_from_a_large_sample(shape: float, scale: float) -> None:
    u = np.random.default_rng(0).uniform(size=400_000)
    excess = -scale * np.log(u) if shape == 0 else scale / shape * (u**-shape - 1)
    parameters = pareto(excess)
    assert parameters[0] == pytest.approx(shape, abs=0.03)
    assert parameters[1] == pytest.approx(scale, rel=0.05)


def test_a_tail_that_would_end_becomes_exponential() -> None:
    excess = np.random.default_rng(0).uniform(0, 0.1, 10_000)
    assert pareto(excess) == pytest.approx((0.0, 0.05), rel=0.02)


def test_equal_exceedances_are_no_sign_of_a_heavy_tail() -> None:
    """Pairs of duplicates all score 1: whether the tail is heavy must not hang on a rounding error."""
    assert {pareto(np.full(count, 0.7))[0] for count in range(20, 60)} == {0.0}


@given(arrays(np.float64, 20, elements=st.floats(0, 3)), arrays(np.int64, 20, elements=st.integers(1, 4)))
def test_a_weight_counts_like_so_many_pairs(excess: Doubles, weights: npt.NDArray[np.int64]) -> None:
    assume(np.ptp(excess) > 1e-3)
    shape, scale = pareto(excess, weights.astype(np.float64))
    repeated = pareto(np.repeat(excess, weights))
    assert shape == pytest.approx(repeated[0], abs=1e-6)
    assert scale == pytest.approx(repeated[1], rel=1e-6, abs=1e-9)


def test_a_tail_that_does_not_fit_says_so() -> None:
    rng = np.random.default_rng(0)
    good = -np.sort(-rng.exponential(0.05, 5000))
    lumps = -np.sort(-np.concatenate([rng.exponential(0.001, 4900), rng.uniform(2, 2.01, 100)]))
    assert fit_tail(good)[2] < 0.3
    assert fit_tail(lumps)[2] > 0.5


def reference_of(x: Vectors, seed: int = 0) -> ReferenceDistribution:
    rng = np.random.default_rng(seed)
    return build(sample_pairs([(x, np.arange(len(x)))], rng), rng)


@pytest.mark.parametrize("rate", [0.3, 0.1, 0.01, 0.001])
def test_a_threshold_has_its_rate_on_the_pairs_it_was_made_of(rate: float) -> None:
    x = latents(400)
    reference = reference_of(x)
    pairs = sample_pairs([(x, np.arange(400))], np.random.default_rng(0))
    share = float((pairs.similarities >= reference.threshold(rate)).mean())
    assert share == pytest.approx(rate, rel=0.2 if rate < 0.01 else 0.03)
    assert reference.pairs == 400 * 399 // 2
    assert reference.sentences == 400


def test_the_interval_of_a_threshold_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = reference_of(latents(1500, seed=99)).threshold(0.01)
    intervals = [reference_of(latents(150, seed=seed)).interval(0.01) for seed in range(20)]
    assert sum(low <= truth <= high for low, high in intervals) >= 15


def test_the_relative_error_of_a_rate_is_how_much_it_varies_between_samples() -> None:
    references = [reference_of(latents(150, seed=seed)) for seed in range(30)]
    threshold = references[0].threshold(0.01)
    rates = [float(reference.false_match_rate(np.array([threshold]))[0]) for reference in references]
    stated = float(np.mean([reference.relative_error[list(reference.levels).index(0.01)] for reference in references]))
    assert stated == pytest.approx(np.std(rates) / np.mean(rates), rel=0.4)


def test_more_sentences_make_a_threshold_surer() -> None:
    def width(count: int) -> float:
        low, high = reference_of(latents(count)).interval(0.01)
        return high - low

    assert width(60) > width(240) > width(960) > 0


def test_a_reference_is_the_same_each_time_for_one_seed() -> None:
    one, again, other = (reference_of(latents(60), seed) for seed in (0, 0, 1))
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name])
    assert not np.array_equal(one.low, other.low)


def test_fewer_than_20_sentences_make_no_reference() -> None:
    with pytest.raises(ValueError, match="at least 20 sentences"):
        reference_of(latents(19))
    assert reference_of(latents(20)).pairs == 190


cosines = arrays(np.float32, st.integers(30, 300), elements=st.floats(-1, 1, width=32))
tied = st.lists(st.sampled_from([-0.25, 0.0, 0.5, 0.50000006, 1.0]), min_size=30, max_size=300)


@settings(max_examples=40)
@given(cosines | tied.map(lambda values: np.array(values, np.float32)))
def test_any_sample_makes_a_scale_that_falls_and_can_be_stored(similarities: npt.NDArray[np.float32]) -> None:
    count = len(similarities)
    pairs = Pairs(similarities, np.arange(count) % 25, (np.arange(count) + 1) % 25, 25)
    reference = build(pairs, np.random.default_rng(0))
    again = ReferenceDistribution.from_arrays(reference.arrays())
    rates = again.false_match_rate(np.linspace(-1, 1, 500))
    assert (np.diff(rates) <= 1e-15).all()
    assert 0 < rates.min() <= rates.max() <= 1
    for rate in (0.5, 0.1, 0.01, 1e-4, 1e-6):
        low, high = again.interval(rate)
        assert low <= again.threshold(rate) <= high
