"""The papers' other measurements: edit distance, AUC, spectrum, and the report they are written into."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.jobs.labelled_pairs import SETS, read_sets
from isosim.measurements.reproduction import (
    MethodDiagnostics,
    Reproduction,
    diagnostics_table,
    edit_distance,
    grids,
    write_report,
)
from isosim.measurements.sources import Encoder
from isosim.measurements.sts import Evaluation
from tests.text import sentences

words = st.lists(st.sampled_from("abc"), max_size=8)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("", "", 0), ("flaw", "lawn", 2), ("ab", "ba", 2)],
)
def test_known_edit_distances(a: str, b: str, distance: int) -> None:
    assert edit_distance(list(a), list(b)) == distance


@given(words, words, words)
def test_the_edit_distance_is_a_metric_between_its_bounds(a: list[str], b: list[str], c: list[str]) -> None:
    distance = edit_distance(a, b)
    assert distance == edit_distance(b, a)
    assert (distance == 0) == (a == b)
    assert abs(len(a) - len(b)) <= distance <= max(len(a), len(b))
    assert edit_distance(a, c) <= distance + edit_distance(b, c)


@pytest.fixture
def sts(tmp_path: Path) -> Path:
    text = sentences(80)
    rows = [f"{index % 6}\t{text[2 * index]}\t{text[2 * index + 1]}" for index in range(40)]
    for pattern in [*(patterns[0] for patterns in SETS.values()), "stsb/dev.tsv"]:
        place = tmp_path / pattern.replace("*", "one")
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(rows))
    (tmp_path / "questions.tsv").write_text("\n".join(row.replace(row[0], str(int(row[0]) % 2), 1) for row in rows))
    return tmp_path


def test_an_evaluation_says_the_same_of_identity_as_of_no_map_and_is_written_out(
    tiny: EncoderArtifact, sts: Path
) -> None:
    evaluation = Evaluation(Encoder(tiny), read_sets(sts))
    more = Reproduction(evaluation, sts, sts / "questions.tsv")
    rows = [evaluation.run(method, 0, None) for method in ("identity", "sn-nulling:2", "auto")]
    diagnostics = [more.run(method, 0, None) for method in ("identity", "sn-nulling:2", "auto")]
    unlike = {"STS-B": rows[0].all["STS-B"], "SICK-R": rows[0].all["SICK-R"]}
    assert set(rows[0].all) == set(SETS)
    assert rows[0].all["STS12"] == pytest.approx(unlike["STS-B"])  # the same pairs in every set
    assert diagnostics[0].spectrum[0] == 1.0
    assert diagnostics[1].effective_rank != pytest.approx(diagnostics[0].effective_rank, abs=0.1)
    assert all(one.auc is not None and 0 <= one.auc <= 100 for one in diagnostics)
    made = grids(rows, diagnostics, more.gold_edit_distance, "tiny")
    place = write_report(sts / "report", "tiny", "isosim evaluate", made, diagnostics)
    written = place.read_text()
    assert f"| identity | {rows[0].all['STS12']:.2f} |" in written
    assert f"| gold | {more.gold_edit_distance:.2f} |" in written
    assert (sts / "report/tiny-spectrum.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_to_fit_on_serves_every_set(tiny: EncoderArtifact, sts: Path) -> None:
    evaluation = Evaluation(Encoder(tiny), read_sets(sts))
    own, other = (evaluation.run("whitening", 0, text) for text in (None, sentences(300)[160:]))
    assert own.all["STS-B"] != pytest.approx(other.all["STS-B"], abs=1e-6)


def test_labels_that_are_no_labels_and_a_missing_part_are_refused(tiny: EncoderArtifact, sts: Path) -> None:
    evaluation = Evaluation(Encoder(tiny), read_sets(sts))
    with pytest.raises(InvalidInput, match="0 and 1"):
        Reproduction(evaluation, sts, sts / "stsb/test.tsv")
    (sts / "stsb/dev.tsv").unlink()
    with pytest.raises(InvalidInput, match=r"stsb/dev\.tsv"):
        Reproduction(evaluation, sts, None)


def test_without_questions_there_is_no_column_for_them() -> None:
    made = diagnostics_table([MethodDiagnostics("identity", 0, -20.0, 3.0, [1.0], None)], -24.6, "title")
    assert made.columns == ("method", "edit distance", "effective rank")
    assert made.rows == [("identity", "-20.00", "3.0"), ("gold", "-24.60", "")]
    assert np.isfinite([float(made.rows[0][1])]).all()
