"""Tables of labelled pairs: columns in either order, with or without names, and what is wrong by its line."""

import pytest

from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.labels import parse_pairs

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
