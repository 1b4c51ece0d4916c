"""Parts and their rows: together they are the file, wherever it is cut."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.bulk.inputs import check_columns, cut, form_of, sources_of
from isosim.bulk.readers import reader_of
from isosim.errors import EmptyInput, InvalidInput

CELL = st.text(st.sampled_from('ab,"\n\ré; \t\u2028'), max_size=6)


def rows_of(file: Path, size: int, column: str = "text", keep: tuple[str, ...] = ("id",), delimiter: str = ",") -> list:
    """All rows through parts of a size."""
    place, sources = sources_of(str(file))
    reader = reader_of(form_of(sources, None), delimiter)
    check_columns(reader, place, sources, [column], keep)
    rows = []
    for part in cut(reader, place, sources, size):
        records = reader.read(place, sources[part.source].path, part, [column], keep)
        assert len(records.cells[column]) == part.rows <= size
        assert part.first == len(rows)
        kept = [records.kept[name].to_pylist() for name in keep]
        rows += zip(*kept, records.cells[column], strict=True)
    return rows


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=80)
def test_csv_is_cut_between_records_whatever_its_cells_hold(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], size: int, end: str
) -> None:
    file = tmp_path_factory.mktemp("csv") / "x.csv"
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *rows])
    file.write_bytes(text.getvalue().encode())
    assert rows_of(file, size) == rows


def test_csv_may_begin_with_a_mark_and_hold_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbfid,text\n1,"5"" pipe"\n2,it is 5" wide\n\n3,caf\xe9\n4\n5,a,b\n')
    place, sources = sources_of(str(tmp_path / "x.csv"))
    reader = reader_of("csv", ",")
    (part,) = cut(reader, place, sources, 100)
    assert part.rows == 5
    records = reader.read(place, sources[0].path, part, ["text"], ["id"])
    assert records.cells["text"] == ['5" pipe', 'it is 5" wide', "caf\udce9", None, "a"]
    assert records.broken.keys() == {3, 4}
    assert records.kept["id"].to_pylist() == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_json_lines_are_rows_and_blank_ones_are_not(tmp_path: Path, size: int) -> None:
    rows = [{"id": "a", "text": "one\ntwo"}, {"id": 2, "text": "é\u2028"}, {"text": None}, {"id": [1], "text": 3}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "x.jsonl").write_text(f"{lines[0]}\n\n{lines[1]}\r\n  \n{lines[2]}\n{lines[3]}", encoding="utf-8")
    expected = [("a", "one\ntwo"), ("2", "é\u2028"), (None, None), ("[1]", 3)]
    assert rows_of(tmp_path / "x.jsonl", size) == expected


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_parquet_is_cut_across_row_groups_and_files(tmp_path: Path, size: int) -> None:
    rows = [(number, f"text {number}") for number in range(20)]
    for number, chunk in enumerate((rows[:11], rows[11:])):
        table = pa.table({"id": [i for i, _ in chunk], "text": pa.array([t for _, t in chunk]).dictionary_encode()})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    (tmp_path / "_SUCCESS").touch()
    assert rows_of(tmp_path, size) == rows


def test_what_cannot_be_read_is_said_before_any_work(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "x.parquet")
    for column, message in (("text", "holds int64, not text"), ("body", "no column 'body'; it has text")):
        with pytest.raises(InvalidInput, match=message):
            rows_of(tmp_path / "x.parquet", 10, column, ())
    (tmp_path / "x.csv.gz").touch()
    with pytest.raises(InvalidInput, match="is compressed"):
        sources_of(str(tmp_path / "x.csv.gz"))
    with pytest.raises(EmptyInput, match="no such file"):
        sources_of(str(tmp_path / "absent.csv"))
    (tmp_path / "x.csv.gz").unlink()
    (tmp_path / "y.csv").write_text("text\na\n")
    with pytest.raises(InvalidInput, match="mixes formats: csv, parquet"):
        form_of(sources_of(str(tmp_path / "[xy].*"))[1], None)
