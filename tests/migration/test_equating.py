"""A threshold carried from one scale to another keeps its false-match rate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isosim.scoring.equating import USUAL_RATES, equate, rate_of, table
from isosim.scoring.reference import ReferenceDistribution
from tests.core.scoring.references import REFERENCE, references

SIMILARITIES = st.floats(-1, 1)


@given(references(), references(), st.lists(SIMILARITIES, min_size=2, max_size=20))
def test_a_higher_threshold_stays_higher_within_an_interval_of_cosines(
    old: ReferenceDistribution, new: ReferenceDistribution, asked: list[float]
) -> None:
    carried = [equate(old, new, similarity) for similarity in sorted(asked)]
    assert (np.diff([one.equivalent for one in carried]) >= -1e-9).all()
    for one in carried:
        assert -1 <= one.interval[0] <= one.equivalent <= one.interval[1] <= 1


@given(references(), references(), st.floats(1e-6, 0.5))
def test_there_and_back_is_where_it_began(old: ReferenceDistribution, new: ReferenceDistribution, rate: float) -> None:
    assume(rate < min(rate_of(old, -1.0), rate_of(new, -1.0)))
    there = equate(old, new, old.threshold(rate))
    assume(max(there.similarity, there.equivalent) < 1 - 1e-6)  # a cosine's end is the end of many rates
    for back in (equate(new, old, there.equivalent), equate(old, old, there.similarity)):
        assert back.equivalent == pytest.approx(there.similarity, abs=1e-5)
        assert back.fmr == pytest.approx(rate, rel=1e-5)


def test_the_interval_holds_the_errors_of_both_scales() -> None:
    centres = np.array([REFERENCE.threshold(rate) for rate in REFERENCE.levels])
    wide, wider, exact = (replace(REFERENCE, low=centres - by, high=centres + by) for by in (0.003, 0.004, 0))
    similarity = REFERENCE.threshold(0.03)
    assert equate(wide, wider, similarity).interval == pytest.approx((similarity - 0.005, similarity + 0.005), abs=1e-4)
    low, high = equate(exact, exact, similarity).interval
    assert low == pytest.approx(high)


def test_what_the_smaller_sample_cannot_count_is_called_extrapolated_and_the_table_has_the_rates_it_names() -> None:
    few, many = replace(REFERENCE, pairs=1000), replace(REFERENCE, pairs=1_000_000)
    for rate in (1e-3, 1 - 1e-3):  # almost every pair is above the second
        similarity = REFERENCE.threshold(rate)
        assert equate(many, few, similarity).extrapolated
        assert equate(few, many, similarity).extrapolated
        assert not equate(many, many, similarity).extrapolated
    steeper = replace(REFERENCE, similarities=REFERENCE.similarities / 2)
    found = [(one.fmr, one.equivalent) for one in table(REFERENCE, steeper)]
    assert np.allclose(found, [(rate, steeper.threshold(rate)) for rate in USUAL_RATES])
