"""`isosim match` through the real entry point."""

import csv
import json
from pathlib import Path

import pytest

from tests.commands.conftest import Run
from tests.text import sentences

TEXTS = sentences(260)
PLANTED = 20  # of them are repeated in capital letters, which the encoder does not tell apart


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, *(text.upper() for text in TEXTS[:PLANTED])]))
    return path


def test_the_duplicates_of_a_file_with_labels_and_again(run: Run, texts: Path, tmp_path: Path) -> None:
    out, labels = tmp_path / "pairs.csv", tmp_path / "labels.tsv"
    same = [(1, text, text.upper()) for text in TEXTS[:PLANTED]]
    others = [(0, TEXTS[n], TEXTS[n + 1]) for n in range(200)]
    labels.write_text("\n".join("\t".join(map(str, row)) for row in [*same, *others]))
    done = run("match", texts, "-o", out, "--similarity", "0.9999")
    assert done.returncode == 0, done.stderr
    rows = [*csv.DictReader(out.open(encoding="utf-8-sig"))]
    assert {(int(row["row_a"]), int(row["row_b"])) for row in rows} == {(n + 1, n + 261) for n in range(PLANTED)}
    *_, compared, worth, _, command = done.stderr.splitlines()
    assert compared.startswith("different texts: 280; pairs compared: 39,060")
    assert worth.startswith("20 pairs of at least 0.9999; not judged")
    match = command.rpartition(" ")[2]
    again = run("match", "--match", match, "--labels", labels, "--precision", "0.9", "--json")
    state = json.loads(again.stdout)
    assert "labelled pairs are not among the candidates" in again.stderr
    assert state["answer"]["precision"] >= 0.9
    assert state["answer"]["judged"] >= PLANTED
    assert [row["label"] for row in state["result"][:PLANTED]] == [1] * PLANTED
    before, failed = out.read_bytes(), run("match", "--match", match, "--threshold", "none", "-o", out)
    assert failed.returncode == 1, failed.stderr
    assert (out.read_bytes(), f"{out} stays as it was" in failed.stderr) == (before, True)
    labels.write_text("\n".join(f"{n % 2}\t{TEXTS[n]}\t{TEXTS[n + 2]}" for n in range(200)))
    picked = run("match", "--match", match, "--labels", labels, "--chosen", "--precision", "0.9", "--json")
    answer = json.loads(picked.stdout)["answer"]
    assert 0 < answer["chosen"] == answer["judged"] - state["answer"]["judged"]
    assert answer["similarity"] == state["answer"]["similarity"]
    state = json.loads(picked.stdout)
    judged = run("match", "--match", match, "--judge", "4", "--similarity", "0.9", stdin="Ja\n1\nu\n0\ns\nq\n")
    assert judged.returncode == 0, judged.stderr
    assert "'ja' is none of y, n, s, u, q" in judged.stderr
    assert [line for line in judged.stderr.splitlines() if " of 4" in line] == [
        f"{place} of 4" for place in (1, 1, 2, 1, 2, 3)
    ]
    before, after = (
        state["answer"]["judged"],
        json.loads(run("match", "--match", match, "--similarity", "0.9", "--json").stdout),
    )
    assert after["answer"]["judged"] == before + 1
    assert judged.stdout.splitlines()[0].split("\t")[:4] == ["row_a", "row_b", "text_a", "text_b"]


def test_searches_with_known_answers(run: Run, texts: Path, tmp_path: Path) -> None:
    check = tmp_path / "check.tsv"
    known = [*((text.upper(), text) for text in TEXTS[:40]), *((f"{text} {text}", "") for text in TEXTS[200:240])]
    check.write_text("\n".join("\t".join(row) for row in [("query", "match"), *known]))
    gallery = tmp_path / "gallery.txt"
    gallery.write_text("\n".join(TEXTS[:100]))
    done = run("match", gallery, "--check", check, "--false-hit-rate", "0.05")
    assert done.returncode == 0, done.stderr
    name, _, wrong, _, found, _ = done.stdout.splitlines()[1].split("\t")
    assert (name, float(wrong) <= 0.05, float(found)) == ("at most 0.05 wrong", True, 1.0)
    assert "80 queries, 40 with a match" in done.stderr
    gallery.write_text("\n".join(TEXTS[1:100]))
    assert "is not a text of" in run("match", gallery, "--check", check).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "give one file or two"),
        (["{}", "--form", "groups"], 2, "--form"),
        (["{}", "{}"], 2, "it is the same file as A"),
        (["{}", "-o", "pairs.pdf"], 2, "its ending must be one of"),
        (["missing.txt"], 1, "missing.txt"),
        (["--match", "7315c63f6c8e46b8b779d0de4f879e60"], 1, "no match"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, texts: Path, words: list[str], code: int, said: str) -> None:
    done = run("match", *(word.format(texts) for word in words))
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
