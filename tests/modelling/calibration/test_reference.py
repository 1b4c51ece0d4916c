"""Building a reference: pairs, tail, ties, false hits of searches, and how sure all of it is."""

from collections import Counter
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluation.calibrated import false_match_rate
from isosim.arrays import Doubles, Rows, Vectors
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting import false_hits, reference
from isosim.fitting.evidence import repeated
from isosim.fitting.job import calibrate_job
from isosim.fitting.publication import off_by
from isosim.fitting.reference import Pairs, build, continuous, fit_tail, folds, pareto, sample_pairs
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
from isosim.scoring.advice import Target, advise, rounded
from isosim.scoring.calibration import DomainModel
from isosim.scoring.false_hits import FalseHitTable
from isosim.scoring.reference import ReferenceDistribution
from isosim.scoring.similarity import normalized
from tests.stores import domains_of
from tests.text import sentences


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


def measured(x: Vectors, seed: int = 0) -> ReferenceDistribution:
    rng = np.random.default_rng(seed)
    return build(sample_pairs([(x, np.arange(len(x)))], rng), rng)


@pytest.mark.parametrize("rate", [0.3, 0.1, 0.01, 0.001])
def test_a_threshold_has_its_rate_on_the_pairs_it_was_made_of(rate: float) -> None:
    x = latents(400)
    reference = measured(x)
    pairs = sample_pairs([(x, np.arange(400))], np.random.default_rng(0))
    share = float((pairs.similarities >= reference.threshold(rate)).mean())
    assert share == pytest.approx(rate, rel=0.2 if rate < 0.01 else 0.03)
    assert reference.pairs == 400 * 399 // 2
    assert reference.sentences == 400


def test_the_interval_of_a_threshold_covers_the_truth_about_as_often_as_it_says() -> None:
    truth = measured(latents(1500, seed=99)).threshold(0.01)
    intervals = [measured(latents(150, seed=seed)).interval(0.01) for seed in range(20)]
    assert sum(low <= truth <= high for low, high in intervals) >= 15


def test_the_relative_error_of_a_rate_is_how_much_it_varies_between_samples() -> None:
    references = [measured(latents(150, seed=seed)) for seed in range(30)]
    threshold = references[0].threshold(0.01)
    rates = [float(reference.false_match_rate(np.array([threshold]))[0]) for reference in references]
    stated = float(np.mean([reference.relative_error[list(reference.levels).index(0.01)] for reference in references]))
    assert stated == pytest.approx(np.std(rates) / np.mean(rates), rel=0.4)


def test_more_sentences_make_a_threshold_surer() -> None:
    def width(count: int) -> float:
        low, high = measured(latents(count)).interval(0.01)
        return high - low

    assert width(60) > width(240) > width(960) > 0


def test_a_reference_is_the_same_each_time_for_one_seed() -> None:
    one, again, other = (measured(latents(60), seed) for seed in (0, 0, 1))
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array, again.arrays()[name])
    assert not np.array_equal(one.low, other.low)


def test_fewer_than_20_sentences_make_no_reference() -> None:
    with pytest.raises(ValueError, match="at least 20 sentences"):
        measured(latents(19))
    assert measured(latents(20)).pairs == 190


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


def vectors(count: int, seed: int, hubs: float = 0.0) -> np.ndarray:
    """Random vectors of 16 dimensions; `hubs`: how much nearer to a common direction a tenth of them lies."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 16))
    x[: count // 10, 0] += hubs
    return rng.permutation(x).astype(np.float32)


def calibrated(x: np.ndarray) -> tuple[ReferenceDistribution, FalseHitTable]:
    rng = np.random.default_rng(0)
    whole = [(x, np.arange(len(x)))]
    made = reference.build(reference.sample_pairs(whole, rng), rng, intervals=False)
    table = false_hits.build(whole, made, rng)
    assert table is not None
    return made, table


def test_shares_are_those_of_all_subsamples() -> None:
    hits = np.array([[3, 1, 0], [0, 0, 0], [6, 5, 2]], np.float64)  # of 6 entries
    for size, found in zip((1, 2, 4, 6), false_hits.shares(hits, 6, np.array([1, 2, 4, 6])), strict=True):
        counted = [
            np.mean([any(entry < k for entry in chosen) for chosen in combinations(range(6), size)])
            for k in hits.ravel()
        ]
        np.testing.assert_allclose(found, np.reshape(counted, hits.shape).mean(0), atol=1e-12)


@pytest.mark.parametrize("hubs", [0.0, 4.0])
@pytest.mark.parametrize("gallery", [30, 300, 2000])
def test_searches_among_unseen_entries_find_as_many_wrong_matches_as_were_asked_for(hubs: float, gallery: int) -> None:
    made, table = calibrated(vectors(1500, 1, hubs))
    unseen = normalized(vectors(12_000, 2, hubs))
    level = table.level(0.02, gallery)
    queries = unseen[:2000]
    best = np.concatenate([
        (queries[start : start + 500] @ unseen[2000 + shift : 2000 + shift + gallery].T).max(1)
        for shift in range(0, 8000, 2000)
        for start in range(0, 2000, 500)
    ])  # fmt: skip
    share = float((best >= made.threshold(level.rate)).mean())
    assert 0.012 < share < 0.032
    assert level.extrapolated == (gallery > 1499)


def test_a_single_entry_is_a_pair() -> None:
    _, table = calibrated(vectors(2000, 4))
    rates = np.array([1e-2, 1e-3])
    np.testing.assert_allclose(table.share(rates, 1), rates, rtol=0.15)


def test_too_few_sentences_have_no_table() -> None:
    x = vectors(40, 5)
    rng = np.random.default_rng(0)
    made = reference.build(reference.sample_pairs([(x, np.arange(40))], rng), rng, intervals=False)
    tenths = [(x[part], part) for part in np.array_split(np.arange(40), 10)]
    assert false_hits.build(tenths, made, rng) is None


@pytest.mark.parametrize("repeated", [0.05, 0.2])
def test_identical_texts_are_hits_of_each_other_however_strict_the_threshold(repeated: float) -> None:
    """What is told of a tie is what searches among such texts find."""
    x = vectors(1500, 6)
    x[: int(repeated * len(x))] = x[0]
    made, table = calibrated(x)
    unit = normalized(x)
    among = 100
    rng = np.random.default_rng(1)
    found = []
    for _ in range(20):
        order = rng.permutation(len(x))
        best = (unit[order[among:]] @ unit[order[:among]].T).max(1)
        found.append(float((best >= 0.9999).mean()))
    told = float(table.share(np.array([made.smallest_rate]), among)[0])
    assert told == pytest.approx(np.mean(found), rel=0.15)
    within_the_tie = table.hits[:, table.rates < made.smallest_rate]
    assert (within_the_tie[table.galleries >= among] >= 0.8 * repeated).all()
    with pytest.raises(InvalidInput, match="the next reachable rate is 0"):
        advise(DomainModel(made, false_hits=table), "news", Target(false_hit_rate=0.001, gallery=among))


COUNT = 744


def without_ties(x: Vectors) -> ReferenceDistribution:
    pairs = pairs_of(x)
    return continuous(pairs.similarities.astype(np.float64), pairs)


def reference_of(x: Vectors, *, intervals: bool = False) -> ReferenceDistribution:
    return build(pairs_of(x), np.random.default_rng(0), intervals=intervals)


def texts_with(*shares: float, count: int = COUNT, dim: int = 48, seed: int = 0) -> Vectors:
    """Vectors, the first so many of them the same but for rounding; a share for each such group."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, dim)) + 0.3
    start = 0
    for share in shares:
        stop = start + round(share * count)
        x[start:stop] = x[start]
        start = stop
    return (x * (1 + 1e-7 * rng.standard_normal(x.shape))).astype(np.float32)


def pairs_of(x: Vectors) -> Pairs:
    return sample_pairs([(x, np.arange(len(x)))], np.random.default_rng(0))


FACTOR = 1.25


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.003, 0.001])
@pytest.mark.parametrize("shares", [(), (0.05,), (0.1,), (0.2,), (0.1, 0.1), (0.3, 0.02)])
def test_a_threshold_keeps_its_rate_where_texts_repeat_or_is_refused_with_one_that_does(
    shares: tuple[float, ...], rate: float
) -> None:
    x = texts_with(*shares)
    model = DomainModel(reference_of(x))
    try:
        asked, threshold = rate, advise(model, "mails", Target(fmr=rate)).similarity
    except InvalidInput as error:
        assert shares, "nothing ties"
        asked = float(str(error).split()[-3 if str(error).endswith("or more") else -1])
        assert asked > rate
        assert f"{asked:g}" in str(error)
        threshold = advise(model, "mails", Target(fmr=asked)).similarity
    assert 1 / FACTOR <= false_match_rate(x, threshold) / asked <= FACTOR


def test_a_rate_between_two_ties_is_refused_with_those_on_both_sides() -> None:
    """Two notices: pairs of one of each tie below 1, and no threshold divides them."""
    x = texts_with(0.15, 0.15)
    x[112:224] += 2 * x[:112]
    scale = reference_of(x)
    between, top = scale.gaps
    assert scale.tied[0] < 0.95
    with pytest.raises(InvalidInput, match=rf"reaches are {between[0]:.3g} and {rounded(between[1]):g}"):
        advise(DomainModel(scale), "mails", Target(fmr=float(between.mean())))
    assert (
        scale.smallest_rate == pytest.approx(2 * 112 * 111 / (COUNT * (COUNT - 1)), rel=1e-3) == pytest.approx(top[1])
    )


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2])
def test_equal_texts_score_with_the_rate_of_all_pairs_that_tie_up_to_rounding(share: float) -> None:
    x = texts_with(share)
    equal = round(share * COUNT)
    expected = equal * (equal - 1) / (COUNT * (COUNT - 1))
    scores = np.array([1.0, 1 - 6e-8, 1 - 1.2e-7], np.float32)
    np.testing.assert_allclose(reference_of(x).false_match_rate(scores), expected, rtol=1e-3)


@pytest.mark.parametrize("equal", [5, 12, 40])
def test_a_tie_too_rare_for_the_quantiles_is_counted_from_ten_pairs_on(equal: int) -> None:
    x = texts_with(equal / 2000, count=2000)
    scale = reference_of(x)
    pairs = equal * (equal - 1) / 2
    assert scale.smallest_rate == pytest.approx(pairs / scale.pairs, rel=1e-3)
    at = [*np.linspace(scale.threshold(1e-3), 0.999, 20)]
    counted = [false_match_rate(x, similarity) for similarity in at]
    rates = scale.false_match_rate(np.array(at))
    assert (np.abs(np.log(rates / np.maximum(counted, 1e-12)))[np.array(counted) * scale.pairs > 100] < 0.25).all()


def test_a_scale_that_knows_its_ties_is_judged_better_than_one_that_lost_them() -> None:
    x, others = texts_with(0.2), pairs_of(texts_with(0.2, seed=1))
    assert off_by(reference_of(x), others) < 0.1 < off_by(without_ties(x), others)


def test_groups_of_equal_vectors_are_found_whatever_lies_between_them() -> None:
    x = texts_with(0.1, 0.03, 2 / COUNT)
    order = np.random.default_rng(1).permutation(COUNT)
    groups = repeated(x[order])
    assert [len(rows) for rows in groups] == [74, 22, 2]
    assert sorted(order[groups[0]].tolist()) == list(range(74))
    assert all((np.diff(rows) > 0).all() for rows in groups)
    assert repeated(texts_with()) == []


def test_a_report_names_the_lines_of_repeated_texts_and_never_a_text(
    tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory
) -> None:
    domains = domains_of(tmp_path_factory.mktemp("repeated"))
    plain = sentences(300)
    texts = [*plain[:10], plain[0], *(text.upper() for text in plain[:5]), *plain[10:]]  # the tokenizer is uncased
    asked = JobRequest("mails", tiny.digest, tiny.id, "identity", sentences=len(texts))
    made = calibrate_job(asked, Posted(texts, []), tiny, domains, lambda _, __: None, threads=1)
    facts = made.report["repeated"]
    assert (facts["texts"], facts["vectors"]) == (10, 5)
    assert facts["groups"][:2] == [{"texts": 2, "lines": [1, 12]}, {"texts": 2, "lines": [2, 13]}]
