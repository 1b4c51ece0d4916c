"""The probability map as it is asked and stored."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from isosim.arrays import Doubles
from isosim.scoring.probability import ProbabilityMap, evidence
from tests.core.scoring.references import MAP

EMPTY = np.empty(0)
TABLE = (
    "precisions", "thresholds", "interval_low", "interval_high", "recalls", "recall_low", "recall_high",
    "precision_low", "precision_high",
)  # fmt: skip
NONE: dict[str, Any] = dict.fromkeys(TABLE, EMPTY)
GRADED = replace(MAP, high=5.0, graded=True, **NONE)


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


def test_between_two_precisions_recall_and_intervals_lie_between_theirs() -> None:
    assert MAP.recall(0.8) == pytest.approx((0.4, 0.3, 0.5))
    assert MAP.precision_interval(0.8) == pytest.approx((0.7, 0.85))


@given(st.lists(st.floats(0.5, 0.9), min_size=2, max_size=20))
def test_a_higher_precision_never_asks_for_a_lower_similarity(asked: list[float]) -> None:
    thresholds = np.array([MAP.precision_threshold(precision) for precision in sorted(asked)])
    assert (np.diff(thresholds, axis=0) >= 0).all()
    assert (thresholds[:, 1] <= thresholds[:, 0]).all()
    assert (thresholds[:, 0] <= thresholds[:, 2]).all()


def test_between_two_levels_the_similarity_lies_between_theirs() -> None:
    assert MAP.precision_threshold(0.7) == (0.5, 0.45, 0.55)
    assert MAP.precision_threshold(0.8) == pytest.approx((0.65, 0.575, 0.75))


@pytest.mark.parametrize("precision", [0.91, 0.99, 0.49, 0.0, 2.0, float("nan")])
def test_a_precision_out_of_reach_is_refused_with_the_highest_that_is_not(precision: float) -> None:
    with pytest.raises(ValueError, match=r"0\.90, the highest that the 120 labelled pairs reach") as refused:
        MAP.precision_threshold(precision)
    assert ("below 0.50, more of the pairs that pass would be wrong" in str(refused.value)) is (precision < 0.5)
    assert ("label more pairs" in str(refused.value)) is not (precision < 0.5)


def test_labels_that_reach_no_level_say_so() -> None:
    with pytest.raises(ValueError, match=r"reach no precision of 0\.5"):
        replace(GRADED, graded=False).precision_threshold(0.5)


def test_grades_have_no_precision() -> None:
    with pytest.raises(ValueError, match="grades"):
        GRADED.precision_threshold(0.5)


@pytest.mark.parametrize("model", [MAP, GRADED], ids=["matches", "grades"])
def test_what_is_stored_comes_back(model: ProbabilityMap) -> None:
    again = ProbabilityMap.from_arrays(model.arrays())
    for field in fields(ProbabilityMap):
        kept, found = getattr(model, field.name), getattr(again, field.name)
        assert type(found) is type(kept)
        np.testing.assert_array_equal(found, kept)


@pytest.mark.parametrize("name", MAP.arrays())
def test_a_missing_array_is_named(name: str) -> None:
    stored = MAP.arrays()
    del stored[name]
    with pytest.raises(KeyError, match=name):
        ProbabilityMap.from_arrays(stored)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("knots", [-2.0, 4.0, 4.0], "must rise"),
        ("logits", [0.0, -0.1, 1.0], "must not fall"),
        ("logits", [0.0, 1.0], "one logit for each"),
        ("logits", [0.0, np.nan, 1.0], "finite"),
        ("clip", 0.5, "clip"),
        ("high", 0.0, "more than one value"),
        ("precisions", [0.5, 0.7, 0.7], "must rise"),
        ("thresholds", [0.5, 0.4, 0.8], "must not fall"),
        ("thresholds", [0.4, 0.5], "every precision"),
        ("interval_high", [0.5, 0.49, 0.95], "outside its own interval"),
        ("interval_low", [0.3, 0.51, 0.7], "outside its own interval"),
        ("recalls", [0.9, 0.6], "a recall"),
        ("recall_low", [0.8, 0.65, 0.1], "a recall lies outside its own interval"),
        ("precision_low", [0.4, 0.6], "a precision"),
        ("precision_high", [0.55, 0.65, 0.95], "a precision lies outside its own interval"),
        ("graded", 1.0, "grades have no precisions"),
    ],
)
def test_numbers_that_make_no_map_are_refused(name: str, value: float | list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ProbabilityMap.from_arrays({**MAP.arrays(), name: np.array(value)})


def test_one_knot_makes_no_map() -> None:
    with pytest.raises(ValueError, match="two knots"):
        ProbabilityMap.from_arrays({**MAP.arrays(), "knots": np.array([1.0]), "logits": np.array([0.0])})
