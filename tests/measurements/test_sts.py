"""Reading of gold-scored pairs: what is refused, and that the message names the file."""

from pathlib import Path

import numpy as np
import pytest

from isosim.errors import InvalidInput
from isosim.jobs.labelled_pairs import SETS, read_pairs, read_sets
from isosim.jobs.text_lines import read_text
from isosim.measurements.sts import Row, cell, spearman, table


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pairs.tsv"


def test_pairs_are_read_as_they_stand(file: Path) -> None:
    file.write_text('4.5\tA "boat"\tthe gate \n0\tя\tb\n\n', encoding="utf-8")
    pairs = read_pairs(file)
    assert pairs.left == ['A "boat"', "я"]
    assert pairs.right == ["the gate ", "b"]
    np.testing.assert_array_equal(pairs.gold, [4.5, 0.0])


@pytest.mark.parametrize("line", ["4.5\tonly one", "1\ta\tb\tc", "a, b, c", "good\ta\tb", "\ta\tb"])
def test_a_line_that_is_no_scored_pair_is_refused_with_the_files_name(file: Path, line: str) -> None:
    file.write_text(f"1\ta\tb\n{line}\n")
    with pytest.raises(InvalidInput, match=r"pairs\.tsv"):
        read_pairs(file)


def test_all_sets_are_read_each_with_its_subsets(tmp_path: Path) -> None:
    for patterns in SETS.values():
        for name in ("one", "two") if "*" in patterns[0] else ("one",):
            place = tmp_path / patterns[0].replace("*", name)
            place.parent.mkdir(exist_ok=True)
            place.write_text("1\ta\tb\n")
    sets = read_sets(tmp_path)
    assert {name: len(files) for name, files in sets.items()} == {
        name: 2 if name.startswith("STS1") else 1 for name in SETS
    }


def test_a_missing_set_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="sts12"):
        read_sets(tmp_path)


def test_text_to_fit_on_is_a_line_each_or_both_sides_of_pairs(file: Path) -> None:
    file.write_text("one\n\n two \n")
    assert read_text(file) == ["one", " two "]
    file.write_text("1\ta\tb\n0\tc\td\n")
    assert read_text(file) == ["a", "b", "c", "d"]


def test_spearman_is_a_hundred_for_the_same_order_and_minus_a_hundred_for_the_opposite() -> None:
    x = np.array([0.1, 0.5, 0.2, 0.9])
    assert spearman(x, x**3) == pytest.approx(100)
    assert spearman(x, -x) == pytest.approx(-100)


def test_several_seeds_of_a_method_are_one_line_with_mean_and_half_range() -> None:
    rows = [Row("flow", seed, {"A": value}, {"A": 0.0}) for seed, value in enumerate((60.0, 61.0, 65.0))]
    made = table([*rows, Row("identity", 0, {"A": 50.0}, {"A": 0.0})], "all", "title")
    assert made.columns == ("method", "A", "mean")
    assert made.rows == [("flow", "62.00 ±2.50", "62.00 ±2.50"), ("identity", "50.00", "50.00")]
    assert made.markdown().split("\n")[1:3] == ["| --- | ---: | ---: |", "| flow | 62.00 ±2.50 | 62.00 ±2.50 |"]
    assert cell([1.0]) == "1.00"
