"""What a calibration has to be given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.errors import InvalidInput
from isosim.jobs.job import METHODS, LabelledPair
from isosim.jobs.requirements import (
    FEWEST_FOR_A_FLOW,
    FEWEST_LABELS,
    FEWEST_SENTENCES,
    check_labels,
    check_readable,
    check_sentences,
    check_vectors,
    distinct_labels,
    fewest_sentences,
    without_contradictions,
)

words = st.text("abc", max_size=2)
labelled = st.lists(st.tuples(words, words, st.sampled_from([0.0, 1.0])), max_size=30)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_as_many_sentences_as_it_needs_and_no_fewer(method: str) -> None:
    needed = fewest_sentences(method, 384)
    check_sentences(method, 384, needed)
    with pytest.raises(InvalidInput, match=rf"{needed - 1} distinct .* at least {needed}"):
        check_sentences(method, 384, needed - 1)


def test_a_calibration_is_refused_if_most_sentences_are_unreadable_or_have_the_same_vectors() -> None:
    check_readable(400, 200)
    with pytest.raises(InvalidInput, match="201 of 400 distinct sentences are unreadable"):
        check_readable(400, 201)
    check_vectors("auto", 384, 1200, FEWEST_SENTENCES)
    with pytest.raises(InvalidInput, match="1,200 distinct sentences have only 9 distinct vectors"):
        check_vectors("auto", 384, 1200, 9)


def test_flows_and_full_whitening_need_more() -> None:
    assert fewest_sentences("auto", 384) == FEWEST_SENTENCES
    assert fewest_sentences("soft-flow:0.4", 384) == FEWEST_FOR_A_FLOW
    assert [fewest_sentences("whitening-k:64", dim) for dim in (32, 384, 1024)] == [FEWEST_SENTENCES, 768, 2048]


@given(labelled)
def test_distinct_labels_are_the_pairs_with_their_labels_whichever_side_comes_first(
    labels: list[tuple[str, str, float]],
) -> None:
    found = distinct_labels([LabelledPair(*pair) for pair in labels])
    kinds = [(frozenset((a, b)), label) for a, b, label, _ in found]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {(frozenset((a, b)), label) for a, b, label in labels}
    assert distinct_labels(found) == found


def pairs(count: int) -> list[LabelledPair]:
    return [LabelledPair(f"a{number}", f"b{number}", float(number % 2)) for number in range(count)]


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (pairs(FEWEST_LABELS - 1), "19 distinct"),
        (pairs(1) * 50, "1 distinct"),
        ([LabelledPair("a", "b", 0.0), LabelledPair("b", "a", 1.0)] * 20, "1 distinct"),
        ([pair._replace(label=1.0) for pair in pairs(30)], "both kinds"),
        ([*pairs(30), LabelledPair("a", "b", 2.0)], "1 of 31 is neither 0 nor 1: 2 in pair 31; write 1 for a match"),
        ([*pairs(30), *[LabelledPair("a", "b", 0.5)] * 9], "9 of 39 are neither .* 0.5 in pair 35, …; write"),
        ([pair._replace(label=pair.label + 1) for pair in pairs(30)], "15 of 30 .* 2 in pair 2, 2 in pair 4"),
        ([*pairs(30), LabelledPair("a", "b", float("nan"))], "nan"),
        ([*pairs(30), LabelledPair("a", "b", 1.0, 0.0)], "weight 0"),
        ([*pairs(30), LabelledPair("a", "b", 1.0, float("inf"))], "weight inf"),
        ([*pairs(30), LabelledPair("a", "b", 1.0, 1e-200)], "weights from 1e-200 to 1; .* at most 1,000,000 times"),
        ([LabelledPair("a", "b", 1.0, 1e5), *pairs(30)], r"are worth only 1\.0 .* at least 10 are needed"),
    ],
)
def test_labels_that_nothing_can_be_learnt_from_are_refused_with_the_reason(
    labels: list[LabelledPair], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        check_labels(labels)


@pytest.mark.parametrize(
    ("grades", "why"),
    [
        ([3.0] * 30, "more than one grade"),
        ([*[0.0, 1.0] * 15, 5.5], "pair 31: label 5.5: grades are within"),
        ([*[0.0, 1.0] * 15, -0.1], "-0.1"),
    ],
)
def test_grades_that_nothing_can_be_learnt_from_are_refused_with_the_reason(grades: list[float], why: str) -> None:
    given = [pair._replace(label=grade) for pair, grade in zip(pairs(len(grades)), grades, strict=True)]
    with pytest.raises(InvalidInput, match=why):
        check_labels(given, "grades")


def test_enough_different_labels_are_taken() -> None:
    check_labels(pairs(FEWEST_LABELS))
    check_labels([pair._replace(label=number % 6) for number, pair in enumerate(pairs(FEWEST_LABELS))], "grades")


@given(labelled)
def test_a_pair_labelled_both_ways_is_left_out_in_either_order_and_the_others_stay(
    labels: list[tuple[str, str, float]],
) -> None:
    given = [LabelledPair(*pair) for pair in labels]
    kept, facts = without_contradictions(given)
    values = {frozenset((a, b)): {label for c, d, label in labels if {c, d} == {a, b}} for a, b, _ in labels}
    assert kept == [pair for pair in given if len(values[frozenset(pair[:2])]) == 1]
    assert facts.get("labels", 0) == len(given) - len(kept)
    assert facts.get("pairs", 0) == sum(len(both) > 1 for both in values.values())
    assert without_contradictions(kept) == (kept, {})
