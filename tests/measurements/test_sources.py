"""Reading the sets on which quality is measured."""

from pathlib import Path

import pytest

from isosim.errors import InvalidInput
from isosim.measurements.sources import quora_pairs


@pytest.mark.parametrize(
    ("labels", "why"),
    [([0, 1] * 10, None), ([0, 1] * 9, "18 distinct"), ([0] * 30, "both kinds"), ([0, 6] * 15, "neither 0 nor 1")],
)
def test_pairs_that_no_probability_can_be_fitted_to_are_refused_before_they_are_embedded(
    tmp_path: Path, labels: list[int], why: str | None
) -> None:
    (tmp_path / "pairs").mkdir()
    rows = [f"{label}\tquestion {row}\tother {row}\n" for row, label in enumerate(labels)]
    (tmp_path / "pairs/quora.tsv").write_text("".join(rows))
    if why is None:
        assert quora_pairs(tmp_path).gold.tolist() == labels
        return
    with pytest.raises(InvalidInput, match=why):
        quora_pairs(tmp_path)
