"""What an engine makes of a part: the service's numbers, in files whose bytes depend on the part alone."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.bulk.engine import Engine
from isosim.bulk.places import Place
from isosim.bulk.plan import Plan, plan_for
from isosim.errors import InvalidInput
from isosim.export.brought import register
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.vector_files import NpyFile
from isosim.scoring.calibration import DomainRef
from isosim.scoring.similarity import cosine
from tests.bulk.conftest import TEXTS, asked
from tests.processes import Serve
from tests.stores import domains_of

FLAGS = ("flags_a", "flags_b")


def plan_of(tmp_path: Path, store: Path, source: Path, task: str = "embed", **given: object) -> Plan:
    number = len(list(tmp_path.glob("plan*")))
    return plan_for(asked(source, task, **given), store, "tiny", Place(str(tmp_path / f"plan{number}")))[0]


def table_of(plan: Plan, store: Path, number: int = 0) -> pa.Table:
    content, _ = Engine(plan, store, 1)(plan.parts[number], lenient=True)
    return pq.read_table(io.BytesIO(content))


@pytest.mark.parametrize("options", [{}, {"space": "raw"}, {"normalize": False}])
def test_vectors_are_the_apis(
    serve: Serve, tmp_path: Path, bulk_store: Path, texts_file: Path, options: dict[str, object]
) -> None:
    """Within 1e-6 of unit vectors: the products of a batch are summed in another order."""
    server = serve(model_store=bulk_store, encoder="tiny")
    expected = server.client.post("/embed", json={"inputs": TEXTS[100:200], "domain": "tickets", **options}).json()
    table = table_of(plan_of(tmp_path, bulk_store, texts_file, **options), bulk_store, 1)
    assert table["row"].to_pylist() == list(range(100, 200))
    scale = np.linalg.norm(expected, axis=1).max()
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()) / scale, np.array(expected) / scale, atol=1e-6)


def test_scores_are_the_apis(serve: Serve, tmp_path: Path, bulk_store: Path, texts_file: Path) -> None:
    server = serve(model_store=bulk_store, encoder="tiny")
    pairs = [[TEXTS[row], TEXTS[row + 1]] for row in range(100)]
    expected = server.client.post("/similarity", json={"pairs": pairs, "domain": "tickets"}).json()
    table = table_of(plan_of(tmp_path, bulk_store, texts_file, "score", keep=("id",)), bulk_store)
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
    by_text = table_of(plan_of(tmp_path, bulk_store, texts_file, "score"), bulk_store)
    raw = {"space": "raw", "normalize": False}
    made = {
        side: table_of(plan_of(tmp_path, bulk_store, texts_file, columns=[name], **raw), bulk_store)[
            "vector"
        ].to_pylist()
        for side, name in (("a", "text"), ("b", "other"))
    }
    made["a"][3], made["a"][4], made["b"][5], made["b"][6] = None, made["a"][4][:-1], [0.0] * len(made["b"][5]), [None]
    kind = pa.list_(pa.float32())
    pq.write_table(pa.table({side: pa.array(rows, kind) for side, rows in made.items()}), tmp_path / "v.parquet")
    (tmp_path / "v.jsonl").write_text(
        "\n".join(json.dumps({"a": a, "b": b}) for a, b in zip(*made.values(), strict=True))
    )
    plan = plan_of(tmp_path, bulk_store, tmp_path / "v.parquet", "score", columns=["a", "b"], vectors=True)
    assert plan.options.vectors
    table = table_of(plan, bulk_store)
    good = [row for row in range(100) if row not in (3, 4, 5, 6)]
    for name in ("cosine", "similarity", "percentile"):
        found, expected = ([rows[name].to_pylist()[row] for row in good] for rows in (table, by_text))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert table["error"].to_pylist()[3:7] == ["a: null", "a: other_dimension", "b: unusable_vector", "b: not_a_vector"]
    assert table["similarity"].to_pylist()[3:7] == [None] * 4
    assert table["flags_a"].to_pylist()[0] == []


def test_brought_vectors_are_scored_and_passed_on(tmp_path: Path) -> None:
    ours = register(tmp_path / "store", "ours", 8, unit=False)
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    domains, request = domains_of(tmp_path / "store"), JobRequest("default", ours.digest, "ours")
    inputs = CalibrationInput([], (), NpyFile(tmp_path / "v.npy"))
    calibrate_job(request, inputs, ours, domains, lambda _, __: None, threads=1).publish(domains)
    (tmp_path / "v.jsonl").write_text(
        "\n".join(json.dumps({"a": a, "b": b}) for a, b in vectors[:60].reshape(30, 2, 8).tolist())
    )
    given = {"domain": DomainRef("default"), "normalize": False, "space": "raw"}
    plans = [
        plan_for(
            asked(tmp_path / "v.jsonl", task, columns=columns, **given),
            tmp_path / "store",
            "ours",
            Place(str(tmp_path / task)),
        )[0]
        for task, columns in (("score", ["a", "b"]), ("embed", ["a"]))
    ]
    scored, passed = (table_of(plan, tmp_path / "store") for plan in plans)
    exact = cosine(vectors[:60:2], vectors[1:60:2])
    np.testing.assert_allclose(scored["cosine"].to_pylist(), exact, atol=1e-6)
    assert scored["percentile"].null_count == 0
    np.testing.assert_allclose(passed["vector"].to_pylist(), vectors[:60:2], atol=1e-6)


def test_a_pair_alone_has_the_apis_bits(serve: Serve, tmp_path: Path, bulk_store: Path) -> None:
    """One text twice makes one batch of one, there and here."""
    text = "A man sells a map."
    server = serve(model_store=bulk_store, encoder="tiny")
    expected = server.client.post("/embed", json={"inputs": text, "domain": "tickets"}).json()
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": text}) + "\n")
    table = table_of(plan_of(tmp_path, bulk_store, tmp_path / "x.jsonl"), bulk_store)
    assert table["vector"].to_pylist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize("task", ["embed", "score"])
def test_the_three_forms_say_the_same_and_never_change_a_byte(
    tmp_path: Path, bulk_store: Path, texts_file: Path, task: str
) -> None:
    made = {}
    for form in ("parquet", "csv", "jsonl"):
        plan = plan_of(tmp_path, bulk_store, texts_file, task, write=form, keep=("id",))
        contents = [Engine(plan, bulk_store, threads)(plan.parts[2], lenient=True)[0] for threads in (1, 1, 2)]
        assert len(set(contents)) == 1
        made[form] = contents[0]
    rows = pq.read_table(io.BytesIO(made["parquet"])).to_pylist()
    lines = [json.loads(line) for line in made["jsonl"].splitlines()]
    cells = list(csv.DictReader(io.StringIO(made["csv"].decode(), newline="")))
    numbers = ("vector",) if task == "embed" else ("cosine", "similarity", "percentile")
    for row, line, cell in zip(rows, lines, cells, strict=True):
        assert list(row) == list(line) == list(cell)
        assert row["id"] == line["id"] == cell["id"]
        for name in numbers:
            kind = np.float64 if name == "percentile" else np.float32
            for text in (line[name], json.loads(cell[name])):
                np.testing.assert_array_equal(np.array(text, kind), np.array(row[name], kind))


def test_a_bad_row_has_a_reason_and_the_others_their_results(tmp_path: Path, bulk_store: Path) -> None:
    bad = ["", " \t", None, 7, "x" * 51]
    lines = [json.dumps({"text": text}) for text in [*bad, "A man sells a map."]] + ["{", "[]", '{"text": "\\ud800"}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    plan = plan_of(tmp_path, bulk_store, tmp_path / "x.jsonl", max_characters=50)
    engine = Engine(plan, bulk_store, 1)
    content, outcome = engine(plan.parts[0], lenient=True)
    table = pq.read_table(io.BytesIO(content))
    reasons = ["empty", "empty", "null", "not_text", "too_long", None, "malformed", "malformed", "malformed"]
    assert table["error"].to_pylist() == reasons
    assert [vector is None for vector in table["vector"].to_pylist()] == [reason is not None for reason in reasons]
    assert outcome.failed == {"empty": 2, "null": 1, "not_text": 1, "too_long": 1, "malformed": 3}
    with pytest.raises(InvalidInput, match=r"x\.jsonl, row 0 of the input: empty"):
        engine(plan.parts[0], lenient=False)


def test_a_part_without_any_usable_row_has_the_same_columns(tmp_path: Path, bulk_store: Path, texts_file: Path) -> None:
    (tmp_path / "x.csv").write_text("text,other\n,\n")
    for task in ("embed", "score"):
        empty = table_of(plan_of(tmp_path, bulk_store, tmp_path / "x.csv", task), bulk_store)
        full = table_of(plan_of(tmp_path, bulk_store, texts_file, task), bulk_store)
        assert empty.schema.equals(full.schema)
    assert empty["error"].to_pylist() == ["text: empty"]


def test_a_text_without_a_known_token_is_marked_and_its_pairs_have_percentile_0(
    tmp_path: Path, bulk_store: Path
) -> None:
    rows = [("🙂", "🚀"), ("🙂", "A man sells a map."), ("A boat.", "A man sells a map.")]
    lines = [json.dumps({"text": a, "other": b}) for a, b in rows]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    vectors = table_of(plan_of(tmp_path, bulk_store, tmp_path / "x.jsonl"), bulk_store)
    assert vectors["unreadable"].to_pylist() == [True, True, False]
    scores = table_of(plan_of(tmp_path, bulk_store, tmp_path / "x.jsonl", "score"), bulk_store)
    assert [value == 0 for value in scores["percentile"].to_pylist()] == [True, True, False]
    flags = [scores[name].to_pylist() for name in ("flags_a", "flags_b")]
    assert [["unreadable" in row for row in side] for side in flags] == [[True, True, False], [True, False, False]]
