"""Reading of gold-scored pairs: what is refused, and that the message names the file."""

from pathlib import Path

import pytest

from isosim.errors import InvalidInput
from isosim.jobs.labelled_pairs import read_pairs
from isosim.jobs.text_lines import read_text


def test_pairs_are_read_as_they_stand_and_text_is_a_line_each_or_both_sides_of_pairs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text('4.5\tA "boat"\tthe gate \n0\tя\tb\n\n', encoding="utf-8")
    pairs = read_pairs(file)
    assert (pairs.left, pairs.right, [*pairs.gold]) == (['A "boat"', "я"], ["the gate ", "b"], [4.5, 0.0])
    for content, texts in (("one\n\n two \n", ["one", " two "]), ("1\ta\tb\n0\tc\td\n", ["a", "b", "c", "d"])):
        file.write_text(content)
        assert read_text(file) == texts
    for line in ("4.5\tonly one", "1\ta\tb\tc", "a, b, c", "good\ta\tb", "\ta\tb"):
        file.write_text(f"1\ta\tb\n{line}\n")
        with pytest.raises(InvalidInput, match=r"pairs\.tsv"):
            read_pairs(file)
