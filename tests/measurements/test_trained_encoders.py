"""The measurement of trained encoders, on a tiny one: trained, exported, ranked, written down, gone on with."""

from pathlib import Path

import pytest
import torch

from isosim.jobs.labelled_pairs import SETS
from isosim.measurements import trained_encoders as quality
from isosim.training.recipe import Recipe
from tests.text import sentences

FOLDERS = {"STS-B": "stsb/test.tsv", "SICK-R": "sick/test.tsv"}


@pytest.fixture(scope="module")
def measuring_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven small sets, a text, graded pairs."""
    folder = tmp_path_factory.mktemp("data")
    texts = sentences(420)
    pairs = [(len(set(a.split()) & set(b.split())) / 4, a, b) for a, b in zip(texts[:210], texts[210:], strict=True)]
    lines = [f"{grade:.2f}\t{a}\t{b}\n" for grade, a, b in pairs]
    places = {name: FOLDERS.get(name, f"{name.lower()}/all.tsv") for name in SETS}
    for at, place in enumerate([*places.values(), "stsb/dev.tsv", "stsb/train.tsv"]):
        (folder / "sts" / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sts" / place).write_text("".join(lines[at * 10 : at * 10 + 130]))
    (folder / "text").mkdir()
    (folder / "text/wikipedia-en.txt").write_text("\n".join([*texts, "one two " * 10]) + "\n")
    return folder


def test_an_encoder_is_trained_exported_and_ranked_once(
    tiny_checkpoint: Path, measuring_data: Path, tmp_path: Path
) -> None:
    """The export's own parity check stands between the trained folder and its rows; a second run computes nothing."""
    said: list[str] = []
    bench = quality.Bench(measuring_data, tmp_path / "work", lambda _, __: None, said.append)
    recipe = Recipe("simcse", layers=2, pooling="cls", batch_size=16, steps=4, every=2, max_length=24)
    training = quality.Training("simcse", str(tiny_checkpoint), recipe, quality.TEXT)
    folder, facts = bench.trained(training)
    artifact = bench.exported("simcse", str(folder))
    assert (artifact.spec.layers, artifact.spec.pooling) == (2, "cls")
    rows = bench.rows(artifact)
    assert [row.method for row in rows] == list(quality.METHODS)
    assert all(list(row.all) == list(SETS) for row in rows)
    assert rows[0].mean != rows[1].mean
    assert rows[3].chosen is not None
    assert set(rows[3].chosen) == set(SETS)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*") if path.is_file()}
    assert bench.trained(training) == (folder, facts)
    assert bench.rows(bench.exported("simcse", str(folder))) == rows
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert said[0].startswith("simcse: STS-B dev ")
    short = (tmp_path / "work" / f"wikipedia-en-{quality.LONGEST}-words.txt").read_text().splitlines()
    assert short == sorted(set(short)), "the order of the lines in the text decides the weights"
    assert not any("one two" in line for line in short)


def row(encoder: str, method: str, score: float) -> quality.Row:
    return quality.Row(encoder, method, dict.fromkeys(SETS, score), dict.fromkeys(SETS, "identity"))


def made(simcse: float, both: float) -> list[quality.Row]:
    scores = {
        quality.RAW: (58.0, 67.0),
        quality.UNSUPERVISED: (simcse, both),
        f"{quality.UNSUPERVISED}-seed1": (66.5, 67),
    }
    return [row(name, m, s) for name, pair in scores.items() for m, s in zip(("identity", "auto"), pair, strict=True)]


def test_what_the_training_has_to_show_is_told_from_what_it_has_not() -> None:
    assert [one.kept for one in quality.promises(made(66.0, 68.0))] == [True, True, True, True]
    assert [one.kept for one in quality.promises(made(65.9, 65.8))] == [False, True, False, False]


def test_a_report_keeps_the_prose_around_its_tables(tmp_path: Path) -> None:
    (tmp_path / "encoders.md").write_text(f"# Mine\n\nbefore\n\n{quality.BEGIN}\nold\n{quality.END}\n\nafter\n")
    trainings = quality.Grid("Trainings", ("encoder", "start"), [("simcse", "minilm")])
    for _ in range(2):
        text = quality.write_report(tmp_path, "isosim measure encoders", made(65.9, 68.0), trainings).read_text()
    assert text.startswith("# Mine\n\nbefore\n")
    assert text.endswith("\n\nafter\n")
    assert text.count("| minilm-layers3-mean, identity |") == 1
    assert "old" not in text
    assert "SimCSE and auto, against SimCSE alone: 68.00, bar 65.90: kept" in text
    assert "both without post-processing: 7.90, bar 8.00: NOT KEPT" in text


@pytest.fixture(autouse=True, scope="module")
def one_thread():  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
