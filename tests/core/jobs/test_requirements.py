"""What a calibration has to be given: labels, sentences, and which of them it rests on."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.errors import InvalidInput
from isosim.jobs.job import METHODS, LabelledPair
from isosim.jobs.labels import parse_pairs
from isosim.jobs.requirements import (
    FEWEST_FOR_A_FLOW,
    FEWEST_LABELS,
    FEWEST_SENTENCES,
    check_labels,
    check_readable,
    check_sentences,
    check_vectors,
    distinct_labels,
    draw,
    fewest_sentences,
    rank,
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


PAIRS = [LabelledPair("red car", "crimson car", 1.0), LabelledPair("red car", "slow boat", 0.25)]
FIRST = [["1", "red car", "crimson car"], ["0.25", "red car", "slow boat"]]
LAST = [["red car", "crimson car", "1"], ["red car", "slow boat", "0.25"]]


def parse(rows: list[list[str]]) -> list[LabelledPair]:
    return [pair for _, pair in parse_pairs(enumerate(rows, 1))]


@pytest.mark.parametrize("rows", [FIRST, LAST])
@pytest.mark.parametrize("names", [[], [["label", "sentence1", "sentence2"]], [["a", "b", "is a match"]]])
def test_columns_are_found_in_either_order_with_and_without_names(
    names: list[list[str]], rows: list[list[str]]
) -> None:
    assert parse([*names, *rows]) == PAIRS


def test_a_sentence_that_is_a_number_does_not_change_where_the_labels_are() -> None:
    assert parse([["1984", "a novel", "1"], ["red car", "slow boat", "0"]]) == [
        LabelledPair("1984", "a novel", 1.0),
        LabelledPair("red car", "slow boat", 0.0),
    ]
    assert [pair[:3] for pair in parse([["1", "a novel", "1984"], ["0", "red car", "seven"]])] == [
        ("a novel", "1984", 1.0),
        ("red car", "seven", 0.0),
    ]


@pytest.mark.parametrize("column", [0, 1, 3])
@pytest.mark.parametrize("rows", [FIRST, LAST])
def test_a_column_named_weight_holds_weights(rows: list[list[str]], column: int) -> None:
    def weighted(cells: list[str], weight: str) -> list[str]:
        return [*cells[:column], weight, *cells[column:]]

    names = weighted(["label", "a", "b"] if rows is FIRST else ["a", "b", "label"], " Weight")
    table = [names, weighted(rows[0], "2"), weighted(rows[1], "0.5")]
    assert parse(table) == [PAIRS[0]._replace(weight=2.0), PAIRS[1]._replace(weight=0.5)]
    for wrong in ("0", "-1", "heavy", "inf"):
        with pytest.raises(InvalidInput, match="line 3: the weight must be a number above 0"):
            parse([names, table[1], weighted(rows[1], wrong)])


def test_nothing_is_no_pair() -> None:
    assert parse([]) == parse([["label", "a", "b"]]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*FIRST, ["1", "red car"]], "line 3: expected 3 columns, found 2"),
        (
            [*FIRST, ["x", "red car", "crimson car"]],
            "line 3: the label 'x' is not a number; write 1 for a match and 0 for no match",
        ),
        ([*LAST, ["red car", "crimson car", "nan"]], "line 3: the label 'nan' is not a number"),
        ([*FIRST, ["1", " ", "crimson car"]], "line 3: a sentence is empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(rows: list[list[str]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse(rows)


QUERIES = [["0", "10", "1"], ["1", "11", "0"], ["2", "12", "1"]]


def test_where_both_ends_of_a_table_of_numbers_could_be_labels_its_first_row_decides() -> None:
    with pytest.raises(InvalidInput, match="both hold the labels; name the columns in a first row: a, b, label"):
        parse(QUERIES)
    assert parse([["query", "entry", "label"], *QUERIES])[0] == LabelledPair("0", "10", 1.0)
    assert parse([["label", "query", "entry"], *QUERIES])[0] == LabelledPair("10", "1", 0.0)
    weighted = [[*row, "2"] for row in QUERIES]
    assert parse([["query", "entry", "label", "weight"], *weighted])[0] == LabelledPair("0", "10", 1.0, 2.0)


@pytest.mark.parametrize("words", [("yes", "no"), ("red car", "slow boat")])
def test_labels_in_words_or_in_the_middle_are_refused(words: tuple[str, str]) -> None:
    rows = [[words[0], "1", "crimson car"], [words[1], "0", "slow boat"]]
    with pytest.raises(InvalidInput, match="neither the first nor the last column has a number; write 1 for a match"):
        parse([["label", "a", "c"], *rows])


def test_named_columns_are_read_wherever_they_stand_and_others_are_ignored() -> None:
    table = [["B", "id", "label", "weight", "a", "comment"], ["crimson car", "1", "1", "2", "red car", "0"]]
    assert parse(table) == [PAIRS[0]._replace(weight=2.0)]
    typo = [["a", "b", "label", "comment"], ["1", "2", "x", ""], ["3", "4", "1", ""]]
    with pytest.raises(InvalidInput, match="line 2: the label 'x' is not a number"):
        parse(typo)
    with pytest.raises(InvalidInput, match="line 3: expected 4 columns, found 3"):
        parse([*typo[:2], ["3", "4", "1"]])
    with pytest.raises(InvalidInput, match="found 4 columns; name the columns in a first row: a, b, label"):
        parse([["query", "entry", "label", "comment"], ["red car", "crimson car", "1", ""]])


TEXTS = [f"Sentence {number}." for number in range(5000)]


def test_as_many_as_may_be_used_are_all_used_in_the_order_they_came_in() -> None:
    shuffled = random.Random(0).sample(TEXTS, 1000)
    texts, posted, distinct = draw([*shuffled, *shuffled[:300]], seed=0, most=1000)
    assert ([*texts], posted, distinct) == (shuffled, 1300, 1000)


@pytest.mark.parametrize("most", [1, 999, 1000, 4999])
def test_of_more_those_with_the_lowest_ranks_are_used(most: int) -> None:
    texts, posted, distinct = draw(iter([*TEXTS, *TEXTS[:700]]), seed=7, most=most)
    assert [*texts] == sorted(TEXTS, key=lambda text: rank(text, 7))[:most]
    assert (posted, distinct) == (5700, 5000)


def test_the_order_of_the_lines_does_not_matter_and_the_seed_does() -> None:
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS))
    found = [[*draw(texts, seed, most=500)[0]] for texts, seed in ((shuffled, 3), (TEXTS, 3), (TEXTS, 4))]
    assert found[0] == found[1]
    assert len({*found[1]} & {*found[2]}) < 100


def test_each_text_has_the_line_of_its_first_appearance() -> None:
    posted = [*TEXTS[:50], *TEXTS[:20], *TEXTS[50:]]
    for most in (50, len(TEXTS)):
        found = draw(posted, seed=1, most=most)[0]
        assert {text: posted.index(text) + 1 for text in found} == found
