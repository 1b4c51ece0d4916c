"""Tables of labelled pairs: columns in either order, with or without names, and what is wrong by its line."""

import pytest

from service.core.errors import InvalidInput
from service.core.jobs.labels import parse_pairs

PAIRS = [("red car", "crimson car", 1.0), ("red car", "slow boat", 0.25)]
FIRST = [["1", "red car", "crimson car"], ["0.25", "red car", "slow boat"]]
LAST = [["red car", "crimson car", "1"], ["red car", "slow boat", "0.25"]]


def parse(rows: list[list[str]]) -> list[tuple[str, str, float]]:
    return parse_pairs(enumerate(rows, 1), "pairs.tsv")


@pytest.mark.parametrize("rows", [FIRST, LAST])
@pytest.mark.parametrize("names", [[], [["label", "sentence1", "sentence2"]], [["a", "b", "is a match"]]])
def test_columns_are_found_in_either_order_with_and_without_names(
    names: list[list[str]], rows: list[list[str]]
) -> None:
    assert parse([*names, *rows]) == PAIRS


def test_a_sentence_that_is_a_number_does_not_change_where_the_labels_are() -> None:
    assert parse([["1984", "a novel", "1"], ["red car", "slow boat", "0"]]) == [
        ("1984", "a novel", 1.0),
        ("red car", "slow boat", 0.0),
    ]
    assert parse([["1", "a novel", "1984"], ["0", "red car", "7"]]) == [("a novel", "1984", 1.0), ("red car", "7", 0.0)]


def test_nothing_is_no_pair() -> None:
    assert parse([]) == parse([["label", "a", "b"]]) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*FIRST, ["1", "red car"]], "line 3: expected a label and two sentences .*, found 2 columns"),
        ([*FIRST, ["x", "red car", "crimson car"]], "line 3: the label 'x' is no number"),
        ([*LAST, ["red car", "crimson car", "nan"]], "line 3: the label 'nan' is no number"),
        ([*FIRST, ["1", " ", "crimson car"]], "line 3: a sentence is empty"),
    ],
)
def test_what_is_wrong_is_named_by_its_line(rows: list[list[str]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse(rows)
