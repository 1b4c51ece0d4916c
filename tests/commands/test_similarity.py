"""`isosim similarity` and `isosim embed` through the real entry point."""

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.conftest import Finished, Run, started
from tests.processes import environment
from tests.text import sentences

PAIRS = [(a, b) for a, b in zip(sentences(40)[::2], sentences(40)[1::2], strict=True)]
TABBED = "".join(f"{a}\t{b}\n" for a, b in PAIRS)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_pipe_gets_a_line_a_pair_in_order(run: Run) -> None:
    done = run("similarity", stdin=TABBED)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(a, b) for _, _, _, a, b in lines] == PAIRS
    assert all(-1 <= float(similarity) <= 1 and 0 <= float(percentile) <= 1 for similarity, percentile, *_ in lines)
    assert {probability for _, _, probability, _, _ in lines} == {""}


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        ("", "standard input is empty"),
        ("one\tother\nonly one\n", "standard input, line 2: 0 tabs"),
        ("one\tother\n\none\t \n", "standard input, line 3: one sentence of the pair is empty"),
        (b"one\tother\nsch\xf6n\tnice\n", "standard input, line 2 is not UTF-8"),
        ("x" * 20_000 + "\ty\n", "standard input, line 1 is longer than 10,000 characters"),
    ],
)
def test_bad_input_is_named_in_one_line(run: Run, stdin: str | bytes, said: str) -> None:
    done = run("similarity", stdin=stdin)
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_answer_comes_while_the_pipe_stays_open(calibrated_store: Path) -> None:
    """Whoever writes slowly does not wait for a block to fill."""
    with started(calibrated_store, "similarity") as process:
        assert process.stdin is not None and process.stdout is not None
        for a, b in PAIRS[:3]:
            process.stdin.write(f"{a}\t{b}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode().endswith(f"\t{a}\t{b}\n")
        process.stdin.close()
        assert process.wait(10) == 0


def test_memory_does_not_grow_with_the_input(calibrated_store: Path) -> None:
    """Beyond the caches, which are switched off here."""
    code = (
        "import resource, sys; from isosim.cli import app\n"
        "try: app(['similarity'])\n"
        "except SystemExit: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def peak(times: int) -> int:  # kB
        text = "".join(f"{a} {n}\t{b}{' and so on' * 80}\n" for n in range(times) for a, b in PAIRS)
        settings = environment(model_store=calibrated_store, encoder="tiny", memory_cache_bytes=0)
        done = subprocess.run(
            [sys.executable, "-c", code], input=text.encode(), env=settings, capture_output=True, check=True
        )
        assert done.stdout.count(b"\n") == times * len(PAIRS)
        return int(done.stderr)

    assert peak(300) - peak(20) < 6_000  # 5 MB of text, and 10 MB of rows, would have to stay


def test_ctrl_c_ends_a_read_with_one_line_and_130(calibrated_store: Path) -> None:
    with started(calibrated_store, "similarity") as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(f"{PAIRS[0][0]}\t{PAIRS[0][1]}\n".encode())
        process.stdin.flush()
        process.stdout.readline()  # it is up, and reads on
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read() == b"isosim: interrupted\n"


def test_a_reader_that_has_enough_is_no_error(calibrated_store: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text(TABBED * 500)
    with started(calibrated_store, "similarity", str(tmp_path / "pairs.tsv")) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_a_file_cannot_control_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("The pilot \x9b2Jdescribes\x07 the gate.\tA map.\n")
    done = run("similarity", str(tmp_path / "pairs.tsv"))
    assert done.stdout.split("\t")[3] == "The pilot  2Jdescribes  the gate."


def test_a_domain_without_reference_says_so(run: Run, store: Path) -> None:
    done = run("similarity", model_store=store, stdin=TABBED)
    assert done.returncode == 0
    assert done.stderr == "isosim: default@0: no_reference\n"


def test_a_text_without_a_known_token_is_flagged_and_never_matches(run: Run) -> None:
    lines = f"🙂\t🚀\n{PAIRS[0][0]}\t{PAIRS[0][1]}\n"
    rows = objects(run("similarity", "--json", stdin=lines).stdout)
    assert (rows[0]["percentile"], rows[0]["flags"]) == (0.0, {"a": ["unreadable"], "b": ["unreadable"]})
    done = run("similarity", "--threshold", "-1", stdin=lines)
    assert [line.split("\t")[3] for line in done.stdout.splitlines()] == [PAIRS[0][0]]
    assert "1 pairs are unreadable" in done.stderr


def test_a_table_is_refused_in_place_of_scoring_its_rows_as_sentences(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "tickets.csv"
    table.write_text("id,question\n" + "".join(f'{n},"Where is number {n}, please?"\n' for n in range(30)))
    done = run("similarity", str(table))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is a table; this command reads" in done.stderr, done.stderr


def test_labels_say_what_was_read_and_which_precisions_they_reach(run: Run, own_store: Path, tmp_path: Path) -> None:
    def changing(*words: str, stdin: str = "") -> Finished:
        return run(*words, stdin=stdin, model_store=own_store)

    texts, file = sentences(90), tmp_path / "pairs.csv"
    scored = objects(
        changing("similarity", "--json", stdin="".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(texts))).stdout
    )
    scored.sort(key=lambda row: row["similarity"], reverse=True)
    rows = [f'"{row["a"]}","{row["b"]}",{int(number < 30)},why\n' for number, row in enumerate(scored)]
    file.write_text("".join(["a,b,label,comment\n", *rows, f'"{scored[0]["b"]}","{scored[0]["a"]}",0,typo\n']))
    done = changing("label", str(file), "--domain", "tickets", "--promote", "always")
    assert done.returncode == 0, done.stderr
    assert "  labels: 90 read, 88 distinct pairs used, 33.0% matches\n" in done.stdout
    assert "  left out: 1 pairs that are labelled both 0 and 1 (labels 1 and 90, counted from 1" in done.stdout
    assert "  promoted: promote: always" in done.stdout
    assert "\nprecision\t95 % interval\tsimilarity ≥\trecall" in done.stdout
    assert "\n0.8\t" in done.stdout

    assert changing("threshold", "tickets", "--precision", "0.8", "--save", "sure").returncode == 0
    lost = changing("domains", "promote", "tickets", "2", "--yes")
    assert (lost.returncode, "makes saved thresholds unreachable: sure (" in lost.stderr) == (1, True), lost.stderr
    assert changing("domains", "promote", "tickets", "2", "--yes", "--without", "sure").returncode == 0


TEXTS = sentences(20)


def test_a_numpy_file_holds_a_row_a_line(run: Run, tmp_path: Path) -> None:
    many = sentences(700)  # several chunks
    (tmp_path / "texts.txt").write_text("\n".join(many))
    done = run("embed", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "x.npy"), "--json")
    found = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert found.shape == (700, 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["dim"], facts["domain"], facts["version"]) == (700, 32, "default", 1)
    run("embed", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "x.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    np.testing.assert_array_equal(np.array(lines, np.float32), found)


def test_a_failure_leaves_the_earlier_file_and_no_part(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"earlier")
    for texts in ([*TEXTS, "", "after"], ["", *TEXTS]):
        done = run("embed", "-o", str(tmp_path / "x.npy"), stdin="\n".join(texts))
        assert done.returncode == 1
        assert "1 lines or rows are empty" in done.stderr
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("x.npy", b"earlier")]


def test_a_table_is_read_by_its_column_and_never_by_its_lines(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "tickets.csv"
    table.write_text("id,question\n" + "".join(f'{n},"{text}, it says"\n' for n, text in enumerate(TEXTS)))
    refused = run("embed", str(table), "-o", str(tmp_path / "x.npy"))
    assert (refused.returncode, "for example column 'question'" in refused.stderr) == (1, True), refused.stderr
    run("embed", str(table), "--column", "question", "-o", str(tmp_path / "x.npy"))
    (tmp_path / "plain.txt").write_text("\n".join(f"{text}, it says" for text in TEXTS))
    run("embed", str(tmp_path / "plain.txt"), "-o", str(tmp_path / "y.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), np.load(tmp_path / "y.npy"), atol=1e-6)
    table.write_text(table.read_text() + "99,\n")
    refused = run("embed", str(table), "--column", "question", "-o", str(tmp_path / "x.npy"))
    assert (refused.returncode, "1 lines or rows are empty" in refused.stderr) == (1, True), refused.stderr
