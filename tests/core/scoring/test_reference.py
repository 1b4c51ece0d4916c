"""The reference distribution as it is asked and stored."""

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Doubles
from isosim.scoring.advice import Target, advise
from isosim.scoring.calibration import DomainModel
from isosim.scoring.reference import ReferenceDistribution
from tests.core.scoring.references import REFERENCE, references


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


@given(references())
def test_what_is_stored_is_what_is_read(reference: ReferenceDistribution) -> None:
    again = ReferenceDistribution.from_arrays(reference.arrays())
    for field in fields(reference):
        value, found = getattr(reference, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(found, value)
        assert type(found) is type(value)


@pytest.mark.parametrize("missing", REFERENCE.arrays())
def test_a_missing_array_is_an_error(missing: str) -> None:
    stored = REFERENCE.arrays()
    del stored[missing]
    with pytest.raises(KeyError):
        ReferenceDistribution.from_arrays(stored)


@pytest.mark.parametrize("name", ["similarities", "logits"])
@pytest.mark.parametrize("damage", ["turned", "equal", "NaN"])
def test_knots_that_are_not_monotone_are_refused(name: str, damage: str) -> None:
    stored = REFERENCE.arrays()
    wrong = stored[name].copy()
    if damage == "turned":
        wrong = wrong[::-1]
    else:
        wrong[2] = wrong[1] if damage == "equal" else np.nan
    with pytest.raises(ValueError, match="knots"):
        ReferenceDistribution.from_arrays(stored | {name: wrong})


@given(references(), st.floats(1e-7, 1 - 1e-9))
def test_a_threshold_and_its_interval_are_cosines(reference: ReferenceDistribution, rate: float) -> None:
    wide = replace(reference, low=reference.low - 5, high=reference.high + 5)
    low, high = wide.interval(rate)
    assert -1 <= low <= wide.threshold(rate) <= high <= 1


@pytest.mark.parametrize(("rate", "beyond"), [(0.5, False), (1e-3, False), (1e-6, True), (1 - 1e-6, True)])
def test_what_the_sample_cannot_count_is_called_extrapolated(rate: float, beyond: bool) -> None:
    assert advise(DomainModel(reference=REFERENCE), "news", Target(fmr=rate)).extrapolated == beyond
