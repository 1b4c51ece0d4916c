"""The child that reads strangers' files: what it says, and that nothing it reads does harm to the process that asks."""

import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.errors import CallerLeft, InvalidInput, IsosimError
from isosim.jobs.intake import MEMORY, Brought, Limits
from isosim.jobs.posted import Spool
from isosim.jobs.sandbox import Reading, last_words, read_isolated, read_path
from tests.workbooks import altered, row, workbook

LIMITS = Limits(characters=100, sentences=1000, size=1_000_000)


def isolated(content: bytes, reading: Reading, limits: Limits = LIMITS) -> tuple[dict[str, Any], list[Any]]:
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as out:
        file.write(content)
        file.flush()
        facts = read_isolated(file, reading, limits, out)
        out.seek(0)
        return facts, [json.loads(line) for line in out]


def test_facts_say_what_is_there_and_what_would_be_left_out() -> None:
    content = "id;question\n" + "".join(f"{n};How do I do {n % 3}?\n" for n in range(12)) + f"12;\n13;{'x' * 101}\n"
    facts, written = isolated(content.encode(), Reading())
    assert written == []
    rows = facts.pop("rows")
    assert rows == [[str(n), f"How do I do {n % 3}?"] for n in range(10)]
    assert facts == {
        "format": "csv", "encoding": "utf-8", "encoding_certain": True, "separator": ";", "header": True, "sheet": None,
        "sheets": [], "columns": ["id", "question"], "column": "question", "sentences": 12, "labels": 0, "distinct": 3,
        "empty": 1, "too_long": 1, "too_long_rows": [15], "longest": 101,
        "notices": ["sentences left out because they are longer than 100 characters: 1 (line 15)"],
    }  # fmt: skip


def test_guesses_are_said() -> None:
    facts, _ = isolated("Wie öffne ich die Datei?\nWo ist sie?\n".encode("cp1252"), Reading("entries"))
    (notice,) = facts["notices"]
    assert "windows-1252, a guess" in notice
    assert notice.endswith("charset names another encoding")
    book = workbook([["about"]], [["a sentence"]] * 30, names=["Cover", "Tickets"])
    facts, written = isolated(book, Reading("entries"))
    assert (facts["sheet"], len(written)) == ("Tickets", 30)
    assert facts["notices"] == ["the longest sheet, 'Tickets', was read; sheet names another: Cover"]
    assert isolated(book, Reading("entries", sheet="Tickets"))[0]["notices"] == []


def test_sentences_and_rows_are_written_as_json_lines() -> None:
    content, header = b"id,question\n1,How?\n\n2,\n3,Why so?\n", ["id", "question"]
    assert isolated(content, Reading("entries", "question", "csv"))[1] == ["How?", "Why so?"]
    rows = [["1", "How?"], ["2", ""], ["3", "Why so?"]]
    assert isolated(content, Reading("rows", kind="csv", header=True))[1] == [header, *rows]
    labels = b"1\ta b\tc d\n" * 3
    assert isolated(labels, Reading("rows", kind="text"))[1] == [["1", "a b", "c d"]] * 3


LINES = [f"第{n}句话\u2028没有换行\u0085，也没有空格。" for n in range(230)]  # separators that are no end of a line


def test_lines_of_json_hold_sentences_and_labelled_pairs_in_any_order() -> None:
    long, pair = "👍" * 9_990, {"a": "水" * 9_990, "b": " a gate ", "label": 1}  # 12 bytes a character
    labels = [{"a": "a boat", "b": f"gate {n}", "label": 0, "weight": "2.5"} for n in range(20)]
    entries = [LINES[0], {"text": LINES[1]}, pair, *LINES[2:], {"id": 7, "text": long}, *labels]
    content = "\n".join(map(json.dumps, entries)).encode()
    facts, written = isolated(content, Reading("entries", kind="ndjson"), Limits(10_000, 1000, 1_000_000))
    pairs = [["a boat", f"gate {n}", 0.0, 2.5] for n in range(20)]
    assert written == [*LINES[:2], [pair["a"], "a gate", 1.0, 1.0], *LINES[2:], long, *pairs]
    assert (facts["sentences"], facts["labels"], facts["distinct"]) == (231, 21, 231)


def vectors_of(entries: list[Any], brought: Brought) -> tuple[dict[str, Any], Any, list[Any]]:
    content = "\n".join(map(json.dumps, entries)).encode()
    with Spool() as spool, tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        reading = Reading("entries", kind="ndjson", brought=brought)
        facts = read_isolated(file, reading, LIMITS, spool.lines, vectors=spool.vectors)
        found = {name: path.read_bytes() for name, path in spool.files()}
        return facts, np.load(io.BytesIO(found["vectors.npy"])), [json.loads(line) for line in found["lines"].split()]


def test_vectors_with_their_texts_are_written_beside_the_lines() -> None:
    vectors = np.eye(9, dtype=np.float32)
    labels = [{"a": row, "b": other, "label": row % 2} for row in range(9) for other in range(row)]
    entries = [{"vector": vector.tolist(), "text": f"t{row}"} for row, vector in enumerate(vectors)]
    facts, found, lines = vectors_of([*entries[:3], *labels, *entries[3:]], Brought(9, unit=True))
    assert np.array_equal(found, vectors)
    assert [line for line in lines if isinstance(line, str)] == [f"t{row}" for row in range(9)]
    assert lines[3] == ["1", "0", 1.0, 1.0]
    assert (facts["sentences"], facts["labels"], facts["distinct"]) == (9, 36, 9)
    with pytest.raises(InvalidInput, match="line 2: the vector has the norm 2, not 1"):
        vectors_of([entries[0], {"vector": [2.0] + [0.0] * 8}], Brought(9, unit=True))


@pytest.mark.parametrize(
    ("content", "limits", "kind", "message"),
    [
        (b"%PDF-1.4", LIMITS, "UnsupportedMedia", "pdf"),
        (b"a b\n" * 1001, LIMITS, "InvalidInput", "more than 1,000 sentences"),
        (b"a b\n" * 1000, Limits(100, 1000, 100), "TooLarge", "more than 100 bytes of text"),
        (b'"a"\n"b\\u001b[31m"\n', LIMITS, "InvalidInput", "line 2 has a control character"),
    ],
)
def test_a_refusal_arrives_as_what_it_is(content: bytes, limits: Limits, kind: str, message: str) -> None:
    with pytest.raises(IsosimError, match=message) as refused:
        isolated(content, Reading("entries", "1"), limits)
    assert type(refused.value).__name__ == kind


def parquet(**columns: pa.Array) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"text": ["How do I log in?"], **columns}), written)
    return written.getvalue()


NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xff\xfe"))
FAR_CELL = row(1, ["id", "text"]) + '<row r="2"><c r="ZZZZZZZZ99999999999"><v>1</v></c></row>'
CORNER = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'
WIDE = row(1, ["id"]) + f'<row r="2">{"<c><v>1</v></c>" * 200_000}</row>'
BOOK = workbook([["id", "text"], *([n, f"How do I log in the {n}th time?"] for n in range(30))])
LAUGHS = '<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
SHEET, RELATIONS = "xl/worksheets/sheet1.xml", "xl/_rels/workbook.xml.rels"


def inflated(size: int) -> bytes:
    """A workbook with a text of so many bytes, which packs to a thousandth."""
    packed = io.BytesIO(workbook([["a"]]))
    with zipfile.ZipFile(packed) as plain:
        parts = {name: plain.read(name) for name in plain.namelist()}
    before, after = parts.pop(SHEET).split(b">a<")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        with archive.open(SHEET, "w", force_zip64=True) as sheet:
            sheet.write(before + b">")
            for _ in range(size // 1_000_000):
                sheet.write(b"a" * 1_000_000)
            sheet.write(b"<" + after)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(parquet(more=NO_UTF8), "Parquet file cannot be read", id="bytes that are no text"),
        pytest.param(parquet(more=pa.array([10**15], pa.timestamp("ms"))), "out of range", id="a date in 33,000"),
        pytest.param(workbook(xml=FAR_CELL), "cannot be read", id="a cell on which the parser panics"),
        pytest.param(workbook(xml=WIDE), "200,000 columns; the limit|within", id="many columns"),
        pytest.param(altered(BOOK, RELATIONS, "worksheets/sheet1.xml", "../../etc/passwd"), "read", id="path upwards"),
        pytest.param(BOOK[:400] + BOOK[420:], "cannot be read", id="damaged"),
    ],
)
def test_a_file_on_which_a_parser_fails_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(IsosimError, match=message):
        isolated(content, Reading("entries", "text"), Limits(100, 1000, 1000))


@pytest.mark.parametrize("part", ["xl/workbook.xml", SHEET])
def test_entities_of_a_workbook_are_not_expanded(part: str) -> None:
    tag = "<workbook" if part != SHEET else "<worksheet"
    content = altered(altered(BOOK, part, tag, LAUGHS + tag), SHEET, "log in the 1th", "log &b; the 1th")
    try:
        assert "haha" not in str(isolated(content, Reading("entries", "text")))
    except InvalidInput as error:
        assert "cannot be read" in str(error)


REFUSED = """
import resource, sys
from isosim.errors import InvalidInput
from tests.adapters.test_sandbox import Reading, isolated
try:
    isolated(sys.stdin.buffer.read(), Reading())
except InvalidInput as error:  # in a process that has had no other children
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, error)
"""


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda: workbook(xml=CORNER), id="a cell in the last corner of the sheet asks for 400 GB"),
        pytest.param(lambda: inflated(9 * MEMORY // 8), id="so much packed into a thousandth"),
    ],
)
def test_a_workbook_that_expands_is_refused_and_takes_no_more_than_its_limit(content: Callable[[], bytes]) -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], input=content(), capture_output=True, check=True)
    peak, said = done.stdout.decode().split(maxsplit=1)
    assert "memory" in said
    assert int(peak) < 1.2 * MEMORY / 1024


def test_a_file_that_needs_more_memory_than_it_is_given_is_refused() -> None:
    content = b"\n".join(b'{"text": "%s"}' % (b"a" * 900_000) for _ in range(100))
    with pytest.raises(InvalidInput, match="cannot be read within 64 MB"):
        isolated(content, Reading("entries"), Limits(100, 1000, 1_000_000, memory=64 << 20))
    with pytest.raises(InvalidInput, match="longer than 100 characters: 100 "):
        isolated(content, Reading("entries"), Limits(100, 1000, 1_000_000))


def test_a_million_empty_rows_are_passed_over() -> None:
    empty = "".join(f'<row r="{number}"/>' for number in range(4, 1_000_000))
    content = workbook(xml=row(1, ["id", "text"]) + row(2, [1, "a b c d e f"]) + row(3, [2, "g h i j k l"]) + empty)
    assert isolated(content, Reading("entries", "text"))[1] == ["a b c d e f", "g h i j k l"]
    blank = b"id,text\n1,a b c d e f g\n" + b",\n" * 1_000_000
    facts, sentences = isolated(blank, Reading("entries", "text", "csv", header=True))
    assert (sentences, facts["empty"]) == (["a b c d e f g"], 1_000_000)


def test_a_child_that_waits_for_something_is_ended() -> None:
    """A limit on processor time does not end it."""
    with (
        subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE) as child,
        pytest.raises(InvalidInput, match="60 seconds"),
    ):
        last_words(child, LIMITS, threading.Event(), patience=0.3)
    assert child.returncode < 0


def test_the_child_inherits_no_secrets_and_ends_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts with four variables of its own; a folder of the child's shows its environment."""
    monkeypatch.setenv("ISOSIM_REDIS_PASSWORD", "secret")
    seen, began = list[bytes](), time.monotonic()

    class Watching(threading.Event):
        def is_set(self) -> bool:
            children = [
                child for task in Path("/proc/self/task").glob("*/children") for child in task.read_text().split()
            ]
            readers = [child for child in children if b"jobs.sandbox" in Path(f"/proc/{child}/cmdline").read_bytes()]
            seen.extend(Path(f"/proc/{reader}/environ").read_bytes() for reader in readers)
            return bool(seen)

    with tempfile.TemporaryFile() as file, pytest.raises(CallerLeft):
        file.write(b"id,text,state\n1,a b c d e f,open\n" + b",,\n" * 10_000_000)  # 20 s
        file.flush()
        read_isolated(file, Reading(kind="csv"), LIMITS, left=Watching())
    assert time.monotonic() - began < 10
    names = {line.split(b"=")[0].decode() for line in seen[0].split(b"\0") if line}
    assert names == {"PYTHONPATH", "PYTHONUTF8", "OMP_NUM_THREADS", "ARROW_DEFAULT_MEMORY_POOL"}


CONNECT = "import sys, socket; from isosim.jobs.sandbox import bound; bound(1000, 1 << 30); "
CONNECT += "socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1)"


def test_the_child_has_no_network() -> None:
    if subprocess.run(["unshare", "-Un", "true"], capture_output=True, check=False).returncode:
        pytest.skip("the system does not permit namespaces of one's own")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", CONNECT, port], capture_output=True, text=True, check=False)
    assert "unreachable" in done.stderr


def test_a_fault_of_the_reader_itself_is_not_taken_for_the_file() -> None:
    with pytest.raises(RuntimeError, match="TypeError"):
        isolated(b"a b c\n", Reading("entries"), Limits(100, "many", 1000))  # type: ignore[arg-type]


def test_a_file_of_the_users_own_is_named_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    file.write_bytes(b"id,question\n1,How do I log in?\n2,Where is it now?\n")
    refused = pytest.raises(InvalidInput, match=r"tickets\.csv: .* column 'question'$")
    with refused, read_path(file, Reading("entries"), LIMITS):
        pass


def test_the_file_of_the_one_who_asks_stays_open_and_modules_in_his_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("csv.py", "isosim.py"):
        (tmp_path / name).write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryFile() as file:
        file.write(b"one sentence\nanother one\n")
        file.flush()
        for _ in range(2):
            assert read_isolated(file, Reading("entries"), LIMITS)["sentences"] == 2


@pytest.mark.parametrize("kind", ["csv", "text", "ndjson"])
def test_a_table_of_labels_gives_pairs_and_names_the_line_of_a_wrong_one(kind: str) -> None:
    pairs = [(f"red car {number}", "a gate", number % 2) for number in range(24)]
    if kind == "ndjson":
        lines = [json.dumps(dict(zip(("a", "b", "label"), pair, strict=True))) for pair in pairs]
    else:
        lines = ["\t".join(map(str, (label, a, b))) for a, b, label in pairs]
    reading = Reading("labels", kind=kind)  # type: ignore[arg-type]
    facts, written = isolated("\n".join(lines).encode(), reading)
    assert (facts["labels"], facts["sentences"]) == (24, 0)
    assert written == [[a, b, float(label), 1.0] for a, b, label in pairs]
    lines[7] = lines[7].replace("1", "2", 1) if kind != "ndjson" else lines[7].replace('"label": 1', '"label": 2')
    with pytest.raises(InvalidInput, match="labels: 1 of 24 is neither 0 nor 1: 2 in line 8"):
        isolated("\n".join(lines).encode(), reading)
