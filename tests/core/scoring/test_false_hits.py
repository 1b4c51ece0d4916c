"""False hits of searches: between the counted numbers of entries, beyond them, and beyond the counted thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from isosim.errors import Conflict, InvalidInput
from isosim.scoring.advice import Target, advise, in_single_precision
from isosim.scoring.calibration import DomainModel
from isosim.scoring.false_hits import FalseHitTable
from tests.core.scoring.test_reference import REFERENCE

RATES = np.logspace(-2, -7, 21)
GALLERIES = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 500.0, 1000.0])


def table(spread: float, queries: int = 10**6) -> FalseHitTable:
    """Counts of queries whose rates follow a Gamma law of this shape: share = 1 − (1 + p·G / spread)^−spread."""
    hits = -np.expm1(-spread * np.log1p(np.outer(GALLERIES, RATES) / spread))
    errors = np.full(hits.shape, 0.1)
    return FalseHitTable(RATES, GALLERIES, hits, errors, queries, 1000)


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


def test_a_table_survives_storage_and_one_that_makes_no_sense_is_refused() -> None:
    made = table(1.0)
    again = FalseHitTable.from_arrays(made.arrays())
    np.testing.assert_array_equal(again.hits, made.hits)
    assert (again.queries, again.entries) == (made.queries, made.entries)
    for broken in (
        replace(made, hits=made.hits[:, :-1]),
        replace(made, hits=made.hits[::-1]),
        replace(made, hits=made.hits[:, ::-1]),
        replace(made, hits=made.hits + 1),
        replace(made, rates=made.rates[::-1]),
        replace(made, galleries=made.galleries[::-1]),
    ):
        with pytest.raises(ValueError, match="false hits"):
            FalseHitTable.from_arrays(broken.arrays())


def test_a_version_without_counts_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="at most 1,000,000 entries"):
        made = DomainModel(REFERENCE, false_hits=table(1.0))
        advise(made, "news", Target(false_hit_rate=0.01, gallery=1_000_001))
    with pytest.raises(Conflict, match="calibrate it again"):
        advise(DomainModel(REFERENCE), "news", Target(false_hit_rate=0.01, gallery=100))
    advice = advise(DomainModel(REFERENCE, false_hits=table(1.0)), "news", Target(false_hit_rate=0.01, gallery=100))
    assert advice.similarity == in_single_precision(REFERENCE.threshold(advice.facts["false_match_rate"]))
    assert advice.interval[0] < advice.similarity < advice.interval[1]
