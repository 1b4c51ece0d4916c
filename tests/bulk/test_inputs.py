"""Rows in blocks: together the blocks are the files, wherever they are cut."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.bulk.inputs import TEXT, VECTOR, open_input
from isosim.errors import EmptyInput, InvalidInput

CELL = st.text(st.sampled_from('ab,"\n\ré; \t\u2028'), max_size=6)


def rows_of(source: Path, size: int) -> list[tuple[object, ...]]:
    """All rows through blocks of a size: the kept column `id` and the text."""
    rows = open_input(str(source), {"id": None, "text": TEXT})
    blocks = list(rows.blocks(size))
    assert all(len(block) == size for block in blocks[:-1])
    assert sum(len(block) for block in blocks) == rows.count()
    return [(row["id"], row["text"]) for block in blocks for row in block.to_pylist()]


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=60)
def test_csv_is_cut_between_rows_whatever_its_cells_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], size: int, end: str
) -> None:
    file = tmp_path_factory.mktemp("csv") / "x.csv"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    file.write_bytes(text.getvalue().encode())
    assert rows_of(file, size) == rows


def test_csv_is_text_and_may_begin_with_a_mark_and_be_compressed(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbfid,text\n007,"5"" pipe"\n2,it is 5" wide\n\n3,NA\n4,\n'
    (tmp_path / "x.csv").write_bytes(content)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(content))
    (tmp_path / "y.TSV").write_bytes(content.replace(b",", b"\t"))
    expected = [("007", '5" pipe'), ("2", 'it is 5" wide'), ("3", "NA"), ("4", "")]
    for name in ("x.csv", "x.csv.gz", "y.TSV"):
        assert rows_of(tmp_path / name, 3) == expected


@pytest.mark.parametrize("size", [1, 3, 100])
def test_json_lines_are_rows_and_blank_ones_are_not(tmp_path: Path, size: int) -> None:
    rows = [{"id": "2026-01-31", "text": "one\ntwo"}, {"id": "b", "text": "é\u2028"}, {"text": None, "more": [1]}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "x.jsonl").write_text(f"{lines[0]}\n\n{lines[1]}\r\n  \n{lines[2]}", encoding="utf-8")
    assert rows_of(tmp_path / "x.jsonl", size) == [("2026-01-31", "one\ntwo"), ("b", "é\u2028"), (None, None)]
    (tmp_path / "x.jsonl").write_text('{"id": "2026-01-31", "text": "2026-01-31"}\n')  # the reader guesses times
    assert rows_of(tmp_path / "x.jsonl", size) == [("2026-01-31", "2026-01-31")]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_parquet_is_cut_across_row_groups_and_files(tmp_path: Path, size: int) -> None:
    rows = [(number, f"text {number}") for number in range(20)]
    for number, chunk in enumerate((rows[:11], rows[11:])):
        table = pa.table({"id": [i for i, _ in chunk], "text": pa.array([t for _, t in chunk]).dictionary_encode()})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    (tmp_path / "_SUCCESS").write_text("{}")
    (tmp_path / "_old").mkdir()
    (tmp_path / "_old" / "3.parquet").write_bytes((tmp_path / "0.parquet").read_bytes())
    assert rows_of(tmp_path, size) == rows_of(tmp_path / "*.parquet", size) == rows


def test_what_cannot_be_read_is_refused_before_any_work(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "v": [[1.0]]}), tmp_path / "x.parquet")
    (tmp_path / "y.csv").write_text("text\na\n")
    (tmp_path / "cells.csv").write_text("id,text\n1,a\n2,a,b\n")
    (tmp_path / "bytes.csv").write_bytes(b"text\ncaf\xe9\n")
    (tmp_path / "number.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (tmp_path / "half.jsonl").write_text('{"text": "a"}\n{\n')
    for name, kind, message in (
        ("x.parquet", {"body": TEXT}, "no column 'body'; it has text, v"),
        ("x.parquet", {"text": VECTOR}, "Unsupported cast from string"),
        ("x.parquet", {"v": TEXT}, "Unsupported cast from list"),
        ("y.csv", {"text": VECTOR}, "CSV conversion to list<item: float> is not supported"),
        ("cells.csv", {"text": TEXT}, "Row #3: Expected 2 columns, got 3"),
        ("bytes.csv", {"text": TEXT}, "Row #2: .*invalid UTF8 data"),
        ("number.jsonl", {"text": TEXT}, "changed from string to number in row 1"),
        ("half.jsonl", {"text": TEXT}, "JSON parse error: .* in row 1"),
        ("[xy].*", {"text": TEXT}, "mixes formats: .csv, .parquet"),
    ):
        with pytest.raises(InvalidInput, match=message):
            open_input(str(tmp_path / name), kind)
    for name in ("absent.csv", "book.xlsx"):
        with pytest.raises(EmptyInput, match=r"no file with content whose name ends in \.parquet"):
            open_input(str(tmp_path / name), {"text": TEXT})
