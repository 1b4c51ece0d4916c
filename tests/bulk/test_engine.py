"""Rows in blocks, and what an engine makes of a block: the numbers of the service, in files of the same bytes."""

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isosim.bulk.engine import Engine
from isosim.bulk.inputs import TEXT, VECTOR, open_input
from isosim.bulk.job import Where
from isosim.errors import EmptyInput, InvalidInput
from isosim.export.brought import register
from isosim.fitting.job import calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
from isosim.jobs.vector_files import NpyFile
from isosim.scoring.similarity import cosine
from tests.bulk.conftest import RAW, TEXTS, prepared
from tests.processes import Serve, Server
from tests.stores import domains_of

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


FLAGS = ("flags_a", "flags_b")


def content_of(
    tmp_path: Path, store: Path, source: Path, task: str = "embed", number: int = 0, **given: object
) -> bytes:
    """The file of a block."""
    job, rows, _ = prepared(tmp_path / f"out{len(list(tmp_path.iterdir()))}", store, source, task, **given)  # type: ignore[arg-type]
    return Engine(job, Where(store))(number, list(rows.blocks(job.options.rows))[number])[0]


def table_of(*given: object, **more: object) -> pa.Table:
    return pq.read_table(io.BytesIO(content_of(*given, **more)))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(module_serve: Serve, bulk_store: Path) -> Server:
    return module_serve(model_store=bulk_store, encoder="tiny")


@pytest.mark.parametrize("options", [{}, {"space": "raw"}, {"normalize": False}])
def test_vectors_are_the_apis(
    server: Server, tmp_path: Path, bulk_store: Path, texts_file: Path, options: dict[str, object]
) -> None:
    """Within 1e-6 of unit vectors: the products of a batch are summed in another order."""
    expected = server.client.post("/embed", json={"inputs": TEXTS[100:200], "domain": "tickets", **options}).json()
    table = table_of(tmp_path, bulk_store, texts_file, number=1, **options)
    assert table["row"].to_pylist() == list(range(100, 200))
    scale = np.linalg.norm(expected, axis=1).max()
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()) / scale, np.array(expected) / scale, atol=1e-6)


def test_scores_are_the_apis(server: Server, tmp_path: Path, bulk_store: Path, texts_file: Path) -> None:
    pairs = [[TEXTS[row], TEXTS[row + 1]] for row in range(100)]
    expected = server.client.post("/similarity", json={"pairs": pairs, "domain": "tickets"}).json()
    table = table_of(tmp_path, bulk_store, texts_file, "score", keep=("id",))
    for name in ("cosine", "similarity", "percentile"):
        np.testing.assert_allclose(table[name].to_pylist(), expected[name], atol=1e-6)
    assert table["extrapolated"].to_pylist() == expected["extrapolated"]
    assert table["probability"].null_count == 100
    told = list(zip(*(table[name].to_pylist() for name in FLAGS), strict=True))
    assert told == [(flags["a"], flags["b"]) for flags in expected["flags"]]
    assert table.schema.metadata[b"isosim.version"] == b"1"
    assert table["id"].to_pylist()[:2] == ["t0", "t1"]


def test_columns_of_vectors_have_the_scores_of_their_texts(tmp_path: Path, bulk_store: Path, texts_file: Path) -> None:
    """Those that the encoder gave; without flags, which only texts could have. A row that holds none has a reason."""
    by_text = table_of(tmp_path, bulk_store, texts_file, "score")
    made = {
        side: table_of(tmp_path, bulk_store, texts_file, columns=(name,), **RAW)["vector"].to_pylist()
        for side, name in (("a", "text"), ("b", "other"))
    }
    made["a"][3], made["a"][4], made["b"][5], made["b"][6] = None, made["a"][4][:-1], [0.0] * len(made["b"][5]), [None]
    pq.write_table(
        pa.table({side: pa.array(rows, pa.list_(pa.float64())) for side, rows in made.items()}), tmp_path / "v.parquet"
    )
    lines = (json.dumps({"a": a, "b": b}) for a, b in zip(*made.values(), strict=True))
    (tmp_path / "v.jsonl").write_text("\n".join(lines))
    good = [row for row in range(100) if row not in (3, 4, 5, 6)]
    for file in ("v.parquet", "v.jsonl"):
        table = table_of(tmp_path, bulk_store, tmp_path / file, "score", columns=("a", "b"), vectors=True)
        for name in ("cosine", "similarity", "percentile"):
            found, expected = ([rows[name].to_pylist()[row] for row in good] for rows in (table, by_text))
            np.testing.assert_allclose(found, expected, atol=1e-6)
        reasons = ["a: null", "a: other_dimension", "b: unusable_vector", "b: other_dimension"]
        assert table["error"].to_pylist()[3:7] == reasons
        assert table["similarity"].to_pylist()[3:7] == [None] * 4
        assert table["flags_a"].to_pylist()[0] == []


def test_brought_vectors_are_scored_and_passed_on(tmp_path: Path) -> None:
    store = tmp_path / "store"
    ours = register(store, "ours", 8, unit=False)
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    domains, request = domains_of(store), JobRequest("default", ours.digest, "ours")
    inputs = Posted([], (), NpyFile(tmp_path / "v.npy"))
    calibrate_job(request, inputs, ours, domains, lambda _, __: None, threads=1).publish(domains)
    pairs = vectors[:60].reshape(30, 2, 8)
    (tmp_path / "v.jsonl").write_text("\n".join(json.dumps({"a": a, "b": b}) for a, b in pairs.tolist()))
    given = {"encoder": "ours", "domain": "default", **RAW}
    scored = table_of(tmp_path, store, tmp_path / "v.jsonl", "score", columns=("a", "b"), **given)
    passed = table_of(tmp_path, store, tmp_path / "v.jsonl", "embed", columns=("a",), **given)
    np.testing.assert_allclose(scored["cosine"].to_pylist(), cosine(pairs[:, 0], pairs[:, 1]), atol=1e-6)
    assert scored["percentile"].null_count == 0
    np.testing.assert_allclose(passed["vector"].to_pylist(), pairs[:, 0], atol=1e-6)


def test_a_bad_row_has_a_reason_and_the_others_their_results(tmp_path: Path, bulk_store: Path) -> None:
    lines = [json.dumps({"text": text}) for text in ["", " \t", None, "x" * 51, "A man sells a map."]]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, "{}"]))
    job, rows, _ = prepared(tmp_path / "out", bulk_store, tmp_path / "x.jsonl", max_characters=50)
    content, outcome = Engine(job, Where(bulk_store))(0, next(rows.blocks(100)))
    table = pq.read_table(io.BytesIO(content))
    reasons = ["empty", "empty", "null", "too_long", None, "null"]
    assert table["error"].to_pylist() == reasons
    assert [vector is None for vector in table["vector"].to_pylist()] == [reason is not None for reason in reasons]
    assert outcome.failed == {"empty": 2, "null": 2, "too_long": 1}


def test_a_text_without_a_known_token_is_marked_and_its_pairs_have_percentile_0(
    tmp_path: Path, bulk_store: Path
) -> None:
    rows = [("🙂", "🚀"), ("🙂", "A man sells a map."), ("A boat.", "A man sells a map.")]
    lines = [json.dumps({"text": a, "other": b}) for a, b in rows]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    vectors = table_of(tmp_path, bulk_store, tmp_path / "x.jsonl")
    assert vectors["unreadable"].to_pylist() == [True, True, False]
    scores = table_of(tmp_path, bulk_store, tmp_path / "x.jsonl", "score")
    assert [value == 0 for value in scores["percentile"].to_pylist()] == [True, True, False]
    flags = [scores[name].to_pylist() for name in FLAGS]
    assert [["unreadable" in row for row in side] for side in flags] == [[True, True, False], [True, False, False]]
