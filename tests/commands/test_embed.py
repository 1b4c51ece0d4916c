"""`isosim embed` through the real entry point."""

import json
from pathlib import Path

import numpy as np

from tests.commands.conftest import Run
from tests.text import sentences

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
