"""`isosim evaluate`: the seven sets, edit distance, AUC, and the report they are written into."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.jobs.offline import open_texts
from isosim.scoring.method import Method
from isosim.sts import DEV, SETS, Evaluation, edit_distance, read_sets, table, tables
from tests.commands.conftest import Run
from tests.text import sentences

words = st.lists(st.sampled_from("abc"), max_size=8)


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
    for pattern in [*SETS.values(), DEV]:
        place = tmp_path / pattern.replace("*", "one")
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(rows))
    (tmp_path / "questions.tsv").write_text("\n".join(row.replace(row[0], str(int(row[0]) % 2), 1) for row in rows))
    return tmp_path


def evaluation(tiny: EncoderArtifact, sts: Path, questions: Path | None = None) -> Evaluation:
    encode = open_texts(tiny)
    return Evaluation(tiny, sts, lambda texts: encode(texts).vectors, questions)


def test_all_sets_are_read_each_with_its_subsets(sts: Path) -> None:
    (sts / "sts12" / "two.tsv").write_text("1\ta\tb\n")
    assert {name: len(files) for name, files in read_sets(sts).items()} == dict.fromkeys(SETS, 1) | {"STS12": 2}


def test_methods_are_scored_on_every_set_and_the_tables_have_the_same_figures(tiny: EncoderArtifact, sts: Path) -> None:
    ready = evaluation(tiny, sts, sts / "questions.tsv")
    identity, nulled, auto = results = [
        ready.run(Method.parse(method), 0) for method in ("identity", "sn-nulling:2", "auto")
    ]
    assert list(identity.all) == list(identity.wmean) == list(SETS)
    assert identity.all["STS12"] == pytest.approx(identity.all["SICK-R"])  # the same pairs in every set
    assert nulled.effective_rank != pytest.approx(identity.effective_rank, abs=0.1)
    assert set(nulled.fitted.values()) == {"sn-nulling:2"}
    assert set(auto.fitted.values()) == {"identity"}  # so few sentences are never whitened
    assert all(one.auc is not None and 0 <= one.auc <= 100 for one in results)
    text = tables(results, ready.gold_edit_distance, "tiny")
    assert f"| identity | {identity.all['STS12']:.2f} |" in text
    assert f"gold scores: {ready.gold_edit_distance:.2f}" in text


def test_a_missing_set_and_labels_that_are_not_0_and_1_are_refused(tiny: EncoderArtifact, sts: Path) -> None:
    with pytest.raises(InvalidInput, match="0 and 1"):
        evaluation(tiny, sts, sts / "stsb/test.tsv")
    (sts / DEV).unlink()
    with pytest.raises(InvalidInput, match=r"stsb/dev\.tsv"):
        evaluation(tiny, sts)
    (sts / "sts12" / "one.tsv").unlink()
    with pytest.raises(InvalidInput, match="sts12"):
        evaluation(tiny, sts)


def test_the_command_prints_a_result_for_each_method_and_seed(run: Run, sts: Path) -> None:
    done = run("evaluate", "--sts", str(sts), "--methods", "identity,sn", "--seeds", "0,1", "--json")
    assert [(one["method"], one["seed"], one["auc"]) for one in json.loads(done.stdout)] == [
        ("identity", 0, None),
        ("sn", 0, None),
    ]


def test_several_seeds_of_a_method_are_one_line_with_mean_and_half_range() -> None:
    rows = [("flow", {"A": value}) for value in (60.0, 61.0, 65.0)]
    lines = table([*rows, ("identity", {"A": 50.0})]).split("\n")
    assert lines == ["| method | A |", "| --- | ---: |", "| flow | 62.00 ±2.50 |", "| identity | 50.00 |"]
