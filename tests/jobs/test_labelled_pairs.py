"""Reading of gold-scored pairs: what is refused, and that the message names the file."""

from pathlib import Path

import numpy as np
import pytest

from isosim.errors import InvalidInput
from isosim.jobs.labelled_pairs import read_pairs
from isosim.jobs.text_lines import read_text


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


def test_text_to_fit_on_is_a_line_each_or_both_sides_of_pairs(file: Path) -> None:
    file.write_text("one\n\n two \n")
    assert read_text(file) == ["one", " two "]
    file.write_text("1\ta\tb\n0\tc\td\n")
    assert read_text(file) == ["a", "b", "c", "d"]
