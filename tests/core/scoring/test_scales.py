"""Scales as they are asked: reference, probabilities, false hits of searches."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Doubles
from isosim.errors import Conflict, InvalidInput
from isosim.scoring.advice import Target, advise, in_single_precision
from isosim.scoring.calibration import DomainModel
from isosim.scoring.probability import ProbabilityMap, evidence
from isosim.scoring.reference import ReferenceDistribution
from tests.core.scoring.references import GRADED, MAP, RATES, REFERENCE, references
from tests.core.scoring.references import false_hits as table


@given(references(), arrays(np.float64, 60, elements=st.floats(-1, 1)))
def test_the_false_match_rate_falls_as_the_threshold_rises_and_never_reaches_0(
    reference: ReferenceDistribution, asked: Doubles
) -> None:
    rates = reference.false_match_rate(np.sort(np.concatenate([asked, reference.similarities])))
    assert (np.diff(rates) <= 1e-15).all()
    assert rates.min() > 0
    assert rates.max() <= 1


@given(references(), arrays(np.float32, 20, elements=st.floats(-1, 1, width=32)))
def test_a_percentile_is_what_is_left_of_the_false_match_rate(
    reference: ReferenceDistribution, asked: npt.NDArray[np.float32]
) -> None:
    percentiles = reference.percentile(asked)
    assert ((percentiles >= 0) & (percentiles <= 1)).all()
    np.testing.assert_array_equal(percentiles, 1 - reference.false_match_rate(asked))


@given(references(), st.floats(1e-6, 0.9999))
def test_a_threshold_has_the_rate_it_was_asked_for(reference: ReferenceDistribution, rate: float) -> None:
    threshold = reference.threshold(rate)
    assert -1.01 <= threshold <= 1
    reached = float(reference.false_match_rate(np.array([-1.0]))[0])
    if rate < reached and threshold < 1 - 1e-6:
        assert reference.false_match_rate(np.array([threshold]))[0] == pytest.approx(rate, rel=1e-6)


@given(references())
def test_the_tail_joins_the_knots_without_a_step(reference: ReferenceDistribution) -> None:
    at = reference.false_match_rate(np.array([reference.join, np.nextafter(reference.join, 1)]))
    assert at[0] == pytest.approx(reference.join_rate, rel=1e-9)
    assert at[1] == pytest.approx(reference.join_rate, rel=1e-9)


def test_an_interval_holds_its_threshold_and_the_levels_it_was_measured_at() -> None:
    centres = np.array([REFERENCE.threshold(rate) for rate in REFERENCE.levels])
    reference = replace(REFERENCE, low=centres - 0.02, high=centres + 0.03)
    for rate in (0.2, 0.1, 0.05, 0.01, 0.003, 0.001, 1e-4):
        low, high = reference.interval(rate)
        assert low == pytest.approx(reference.threshold(rate) - 0.02)
        assert high == pytest.approx(reference.threshold(rate) + 0.03)


def test_the_data_back_no_rate_below_ten_pairs_and_none_that_is_half_error() -> None:
    assert REFERENCE.resolution == 1e-3  # its relative error is unknown
    sure = replace(REFERENCE, relative_error=np.array([0.01, 0.1, 0.4]))
    assert sure.resolution == 10 / REFERENCE.pairs
    assert replace(REFERENCE, relative_error=np.array([0.2, 0.6, 0.9])).resolution == 1e-2


@given(references(), st.floats(1e-7, 1 - 1e-9))
def test_a_threshold_and_its_interval_are_cosines(reference: ReferenceDistribution, rate: float) -> None:
    wide = replace(reference, low=reference.low - 5, high=reference.high + 5)
    low, high = wide.interval(rate)
    assert -1 <= low <= wide.threshold(rate) <= high <= 1


@pytest.mark.parametrize(("rate", "beyond"), [(0.5, False), (1e-3, False), (1e-6, True), (1 - 1e-6, True)])
def test_what_the_sample_cannot_count_is_called_extrapolated(rate: float, beyond: bool) -> None:
    assert advise(DomainModel(reference=REFERENCE), "news", Target(fmr=rate)).extrapolated == beyond


@st.composite
def maps(draw: st.DrawFn) -> ProbabilityMap:
    """Any knots and any logits that do not fall."""
    count = draw(st.integers(2, 30))
    knots = np.cumsum(draw(arrays(np.float64, count, elements=st.floats(1e-3, 1)))) - 10
    logits = np.cumsum(draw(arrays(np.float64, count, elements=st.floats(0, 5)))) - 10
    return replace(MAP, knots=knots, logits=logits, clip=draw(st.floats(0, 0.1)))


rates = arrays(np.float64, st.integers(1, 50), elements=st.floats(0, 1))


@given(maps(), rates)
def test_a_rarer_score_is_never_less_probable_a_match(model: ProbabilityMap, asked: Doubles) -> None:
    probabilities = model.probability(np.sort(asked)[::-1])
    assert (np.diff(probabilities) >= 0).all()
    assert ((probabilities >= model.clip) & (probabilities <= 1 - model.clip)).all()


@given(maps())
def test_at_a_knot_the_probability_is_the_one_stored(model: ProbabilityMap) -> None:
    found = model.probability(1 / (1 + np.exp(model.knots)))
    expected = np.clip(1 / (1 + np.exp(-model.logits)), model.clip, 1 - model.clip)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(st.floats(1e-9, 0.999))
def test_evidence_is_the_logit_of_the_percentile(rate: float) -> None:
    assert 1 / (1 + np.exp(evidence(rate))) == pytest.approx(rate, rel=1e-9)


def test_grades_come_as_shares_of_their_range() -> None:
    assert GRADED.probability(np.array([1 / (1 + np.exp(4.0))])) == pytest.approx(0.5)


def test_between_two_levels_similarity_recall_and_intervals_lie_between_theirs() -> None:
    assert MAP.precision_threshold(0.7) == (0.5, 0.45, 0.55)
    assert MAP.precision_threshold(0.8) == pytest.approx((0.65, 0.575, 0.75))
    assert MAP.recall(0.8) == pytest.approx((0.4, 0.3, 0.5))
    assert MAP.precision_interval(0.8) == pytest.approx((0.7, 0.85))


@given(st.lists(st.floats(0.5, 0.9), min_size=2, max_size=20))
def test_a_higher_precision_never_asks_for_a_lower_similarity(asked: list[float]) -> None:
    thresholds = np.array([MAP.precision_threshold(precision) for precision in sorted(asked)])
    assert (np.diff(thresholds, axis=0) >= 0).all()
    assert (thresholds[:, 1] <= thresholds[:, 0]).all()
    assert (thresholds[:, 0] <= thresholds[:, 2]).all()


@pytest.mark.parametrize("precision", [0.91, 0.99, 0.49, 0.0, 2.0, float("nan")])
def test_a_precision_out_of_reach_is_refused_with_the_highest_that_is_not(precision: float) -> None:
    with pytest.raises(ValueError, match=r"0\.90, the highest that the 120 labelled pairs reach") as refused:
        MAP.precision_threshold(precision)
    assert ("below 0.50, more of the pairs that pass would be wrong" in str(refused.value)) is (precision < 0.5)
    assert ("label more pairs" in str(refused.value)) is not (precision < 0.5)


def test_grades_and_labels_that_reach_no_level_have_no_threshold() -> None:
    for model, said in ((GRADED, "grades"), (replace(GRADED, graded=False), r"reach no precision of 0\.5")):
        with pytest.raises(ValueError, match=said):
            model.precision_threshold(0.5)


@pytest.mark.parametrize("spread", [0.3, 2.0, 1e4])
@pytest.mark.parametrize("gallery", [10, 60, 1000, 2000, 50_000])
def test_shares_follow_the_law_of_the_queries_between_and_beyond_the_counted_numbers(
    spread: float, gallery: int
) -> None:
    true = -np.expm1(-spread * np.log1p(gallery * RATES / spread))
    np.testing.assert_allclose(table(spread).share(RATES, gallery), true, rtol=0.01 if gallery > 1000 else 0.06)


@pytest.mark.parametrize("gallery", [7, 10, 100, 1000, 1001, 40_000])
def test_a_level_gives_the_share_that_was_asked_for(gallery: int) -> None:
    made = table(1.0)
    for share in (0.1, 0.01, 0.001):
        level = made.level(share, gallery)
        assert made.share(np.array([level.rate]), gallery)[0] == pytest.approx(share, rel=0.02)
        assert level.low < level.rate < level.high
        assert level.extrapolated == (gallery > 1001 or level.rate > RATES[0])  # of N sentences each has N − 1 others


def test_thresholds_that_too_few_queries_passed_follow_the_false_match_rate() -> None:
    made = table(1.0, queries=1000)  # a share of 0.01 is of 10 queries
    counted, beyond = made.level(0.02, 100), made.level(0.0002, 100)
    assert (counted.extrapolated, beyond.extrapolated) == (False, True)
    assert beyond.rate == pytest.approx(counted.rate / 100, rel=0.05)


@pytest.mark.parametrize("spread", [0.3, 2.0])
@pytest.mark.parametrize("gallery", [1000, 100_000, 1_000_000])
def test_few_queries_tell_of_rare_hits_and_many_entries_by_the_law_they_follow(spread: float, gallery: int) -> None:
    """A share that is nearly 1 at the last counted threshold must not be carried on in proportion."""
    made = table(spread, queries=300)
    rates = np.logspace(-3, -11, 17)
    true = -np.expm1(-spread * np.log1p(gallery * rates / spread))
    np.testing.assert_allclose(made.share(rates, gallery), true, rtol=0.25)
    expected = gallery * rates
    least = expected**2 / (expected + (1 + 1 / spread) * expected**2)  # by its first two moments
    assert (made.share(rates, gallery) > 0.75 * least).all()


def test_shares_make_no_step_at_the_highest_counted_rate_and_beyond_it_are_extrapolated() -> None:
    made = table(0.3)
    below, above = made.share(np.array([0.00999, 0.01001]), 100)
    assert above == pytest.approx(below, rel=0.01)
    level = made.level(0.9, 100)
    assert level.rate > 0.01
    assert level.extrapolated
    assert level.low < level.rate < level.high


def test_an_interval_widens_beyond_the_counted_entries() -> None:
    made = table(1.0)
    widths = [np.log(level.high / level.low) for level in (made.level(0.01, size) for size in (1000, 2000, 20_000))]
    assert widths[0] < widths[1] < widths[2]


def test_a_table_without_a_single_hit_takes_queries_for_alike() -> None:
    made = table(1.0)
    empty = replace(made, hits=np.zeros_like(made.hits))
    for gallery in (10, 5000):
        assert empty.share(np.array([1e-4]), gallery)[0] == pytest.approx(-np.expm1(-1e-4 * gallery), rel=0.01)


def test_more_entries_or_a_looser_threshold_never_mean_fewer_false_hits() -> None:
    made = table(0.5)
    rates = np.logspace(0, -9, 50)
    shares = np.array([made.share(rates, gallery) for gallery in (1, 5, 10, 99, 500, 900, 1000, 1001, 10**6)])
    assert (np.diff(shares, axis=0) >= -1e-12).all()
    assert (np.diff(shares, axis=1) <= 1e-12).all()
    assert ((shares >= 0) & (shares <= 1)).all()


def test_a_version_without_counts_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="at most 1,000,000 entries"):
        made = DomainModel(REFERENCE, false_hits=table(1.0))
        advise(made, "news", Target(false_hit_rate=0.01, gallery=1_000_001))
    with pytest.raises(Conflict, match="calibrate it again"):
        advise(DomainModel(REFERENCE), "news", Target(false_hit_rate=0.01, gallery=100))
    advice = advise(DomainModel(REFERENCE, false_hits=table(1.0)), "news", Target(false_hit_rate=0.01, gallery=100))
    assert advice.similarity == in_single_precision(REFERENCE.threshold(advice.facts["false_match_rate"]))
    assert advice.interval[0] < advice.similarity < advice.interval[1]
