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
def test_a_higher_threshold_stays_higher(
    old: ReferenceDistribution, new: ReferenceDistribution, asked: list[float]
) -> None:
    carried = [equate(old, new, similarity).equivalent for similarity in sorted(asked)]
    assert (np.diff(carried) >= -1e-9).all()


@given(references(), SIMILARITIES)
def test_a_scale_carried_to_itself_is_the_same(reference: ReferenceDistribution, similarity: float) -> None:
    inside = float(np.clip(similarity, reference.similarities[0], 0.999))
    assume(rate_of(reference, inside) > 1e-11)  # below it every rate is the smallest there is
    found = equate(reference, reference, inside)
    assert rate_of(reference, found.equivalent) == pytest.approx(found.fmr, rel=1e-9)
    if np.diff(reference.logits).max() < -1e-3:  # flatter ones have the same rate, to the last bit, at many places
        assert found.equivalent == pytest.approx(inside, abs=1e-5)


@given(references(), references(), st.floats(1e-6, 0.5))
def test_there_and_back_is_where_it_began(old: ReferenceDistribution, new: ReferenceDistribution, rate: float) -> None:
    assume(rate < min(rate_of(old, -1.0), rate_of(new, -1.0)))
    there = equate(old, new, old.threshold(rate))
    assume(max(there.similarity, there.equivalent) < 1 - 1e-6)  # a cosine's end is the end of many rates
    back = equate(new, old, there.equivalent)
    assert back.equivalent == pytest.approx(there.similarity, abs=1e-6)
    assert back.fmr == pytest.approx(rate, rel=1e-5)


@given(references(), references(), SIMILARITIES)
def test_the_interval_is_of_cosines_and_holds_the_threshold(
    old: ReferenceDistribution, new: ReferenceDistribution, similarity: float
) -> None:
    found = equate(old, new, similarity)
    low, high = found.interval
    assert -1 <= low <= found.equivalent <= high <= 1


def test_the_interval_holds_the_errors_of_both_scales() -> None:
    centres = np.array([REFERENCE.threshold(rate) for rate in REFERENCE.levels])

    def within(margin: float) -> ReferenceDistribution:
        return replace(REFERENCE, low=centres - margin, high=centres + margin)

    similarity = REFERENCE.threshold(0.03)
    low, high = equate(within(0.003), within(0.004), similarity).interval
    assert low == pytest.approx(similarity - 0.005, abs=1e-4)
    assert high == pytest.approx(similarity + 0.005, abs=1e-4)
    low, high = equate(within(0), within(0), similarity).interval
    assert low == pytest.approx(high)


def test_what_the_smaller_sample_cannot_count_is_called_extrapolated() -> None:
    few, many = replace(REFERENCE, pairs=1000), replace(REFERENCE, pairs=1_000_000)
    rare = REFERENCE.threshold(1e-3)
    assert equate(few, many, rare).extrapolated
    assert equate(many, few, rare).extrapolated
    assert not equate(many, many, rare).extrapolated
    usual = REFERENCE.threshold(1 - 1e-3)  # almost every pair is above it
    assert equate(many, few, usual).extrapolated
    assert not equate(many, many, usual).extrapolated


def test_the_table_has_the_rates_it_names() -> None:
    steeper = replace(REFERENCE, similarities=REFERENCE.similarities / 2)
    found = table(REFERENCE, steeper)
    assert [one.fmr for one in found] == pytest.approx(USUAL_RATES)
    assert [one.equivalent for one in found] == pytest.approx([steeper.threshold(rate) for rate in USUAL_RATES])
