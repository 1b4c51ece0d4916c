"""The child that reads strangers' files: what it says, and that nothing it reads does harm to the process that asks."""

import io
import json
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosim.errors import CallerLeft, InvalidInput, IsosimError
from isosim.jobs.tables.detection import Hints
from isosim.jobs.tables.isolation import (
    MEMORY,
    Limits,
    Reading,
    as_options,
    last_words,
    read_isolated,
    read_path,
    what_was_read,
)
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
        "sheets": [], "columns": ["id", "question"], "column": "question", "sentences": 12, "distinct": 3, "empty": 1,
        "too_long": 1, "too_long_rows": [15], "longest": 101,
    }  # fmt: skip
    assert what_was_read(facts) == ["sentences left out because they are too long: 1 (rows 15)"]


@pytest.mark.parametrize("give", ["facts", "sentences"])
@pytest.mark.parametrize("control", ["\x1b[31m", "\0"])
def test_a_sentence_with_a_control_character_is_refused_with_its_line(control: str, give: Any) -> None:
    lines = [json.dumps(text) for text in ("a", "b", f"c{control}", "d")]
    with pytest.raises(InvalidInput, match="line 3 has a control character"):
        isolated("\n".join(lines).encode(), Reading(give))


def test_sentences_and_rows_are_written_as_json_lines() -> None:
    content = b"id,question\n1,How?\n\n2,\n3,Why so?\n"
    csv = Hints(declared="csv")
    assert isolated(content, Reading("sentences", "question", csv))[1] == ["How?", "Why so?"]
    assert isolated(content, Reading("rows", hints=csv))[1] == [
        ["id", "question"],
        ["1", "How?"],
        ["2", ""],
        ["3", "Why so?"],
    ]
    assert isolated(content, Reading("numbered_rows", hints=csv))[1][-1] == [5, ["3", "Why so?"]]


def test_a_column_of_identifiers_is_refused_and_the_likeliest_one_named() -> None:
    content = b"id,question\n" + b"".join(b"T-%d,How do I do it the %dth time?\n" % (n, n) for n in range(30))
    with pytest.raises(InvalidInput, match=r"holds numbers or identifiers.*column=question"):
        isolated(content, Reading("sentences", "id"))
    assert len(isolated(content, Reading("sentences", "question"))[1]) == 30


def test_the_sheet_that_was_chosen_is_said() -> None:
    content = workbook([["about"]], [["a sentence"]] * 30, names=["Cover", "Tickets"])
    facts, written = isolated(content, Reading("sentences"))
    assert (facts["sheet"], len(written)) == ("Tickets", 30)
    assert what_was_read(facts) == ["the sheet 'Tickets' of the workbook was read; others (sheet=NAME) are Cover"]
    assert what_was_read(facts, "Tickets") == []


def test_a_guessed_encoding_is_said() -> None:
    facts, _ = isolated("Wie öffne ich die Datei?\nWo ist sie?\n".encode("cp1252"), Reading("sentences"))
    (notice,) = what_was_read(facts)
    assert "windows-1252, a guess" in notice
    assert as_options(notice).endswith("--charset NAME names another encoding")


@pytest.mark.parametrize(
    ("content", "limits", "kind", "message"),
    [
        (b"%PDF-1.4", LIMITS, "UnsupportedMedia", "PDF"),
        (b"a b\n" * 1001, LIMITS, "InvalidInput", "more than 1,000 sentences"),
        (b"a b\n" * 1000, Limits(100, 1000, 100), "TooLarge", "more than 100 bytes of text"),
    ],
)
def test_a_refusal_arrives_as_what_it_is(content: bytes, limits: Limits, kind: str, message: str) -> None:
    with pytest.raises(IsosimError, match=message) as refused:
        isolated(content, Reading("sentences"), limits)
    assert type(refused.value).__name__ == kind


def parquet(**columns: pa.Array) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"text": ["How do I log in?"], **columns}), written)
    return written.getvalue()


NO_UTF8 = pa.StringArray.from_buffers(1, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xff\xfe"))
FAR_CELL = row(1, ["id", "text"]) + '<row r="2"><c r="ZZZZZZZZ99999999999"><v>1</v></c></row>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(parquet(more=NO_UTF8), "Parquet file cannot be read", id="bytes that are no text"),
        pytest.param(parquet(more=pa.array([10**15], pa.timestamp("ms"))), "out of range", id="a date in 33,000"),
        pytest.param(workbook(xml=FAR_CELL), "cannot be read", id="a cell on which the parser panics"),
    ],
)
def test_a_file_on_which_a_parser_fails_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(IsosimError, match=message):
        isolated(content, Reading("sentences", "text"), Limits(100, 1000, 1000))


def test_brackets_without_end_are_text() -> None:
    assert isolated(b"[" * 100_000, Reading())[0]["format"] == "text"


def test_columns_of_lists_hinder_no_other_column() -> None:
    listed = [[datetime(2026, 1, 2, tzinfo=UTC)], [Decimal("1.5")], [b"\xff"]]
    for values in listed:
        content = parquet(more=pa.array([values]))
        assert isolated(content, Reading("sentences", "text"))[1] == ["How do I log in?"]


CORNER = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>2</v></c></row>'


def inflated(size: int) -> bytes:
    """A workbook with a text of so many bytes, which packs to a thousandth."""
    packed = io.BytesIO(workbook([["a"]]))
    with zipfile.ZipFile(packed) as plain:
        parts = {name: plain.read(name) for name in plain.namelist()}
    before, after = parts.pop("xl/worksheets/sheet1.xml").split(b">a<")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            sheet.write(before + b">")
            for _ in range(size // 1_000_000):
                sheet.write(b"a" * 1_000_000)
            sheet.write(b"<" + after)
    return packed.getvalue()


REFUSED = """
import resource, sys
from isosim.errors import InvalidInput
from tests.adapters.tables.test_isolation import Reading, isolated
try:
    isolated(sys.stdin.buffer.read(), Reading())
except InvalidInput as error:  # in a process that has had no other children
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, error)
"""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(workbook(xml=CORNER), "memory", id="a cell in the last corner of the sheet asks for 400 GB"),
        pytest.param(inflated(2_000_000_000), "memory", id="2 GB packed into 2 MB"),
        pytest.param(inflated(2_200_000_000), "unpacks to 2,2", id="more than is unpacked"),
    ],
)
def test_a_workbook_that_expands_is_refused_and_takes_no_more_than_its_limit(content: bytes, message: str) -> None:
    done = subprocess.run([sys.executable, "-c", REFUSED], input=content, capture_output=True, check=True)
    peak, said = done.stdout.decode().split(maxsplit=1)
    assert message in said
    assert int(peak) < 1.2 * MEMORY / 1024


BOOK = workbook([["id", "question"], *([n, f"How do I log in the {n}th time?"] for n in range(30))])
LAUGHS = '<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>'
SHEET, RELATIONS = "xl/worksheets/sheet1.xml", "xl/_rels/workbook.xml.rels"
UNCLOSED = b'id,text\n1,"How do I log in\n' + b"2,How do I log in when it fails\n" * 3_000_000
WIDE = row(1, ["id"]) + f'<row r="2">{"<c><v>1</v></c>" * 200_000}</row>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (altered(BOOK, "xl/workbook.xml", "<workbook", LAUGHS + "<workbook"), "'xl/workbook.xml' in the workbook def"),
        (altered(BOOK, SHEET, "<worksheet", LAUGHS + "<worksheet"), f"'{SHEET}' in the workbook defines XML entities"),
        (altered(BOOK, SHEET, "id", "id", **{"../../evil.xml": "<a/>"}), "outside of the workbook, '../../evil.xml'"),
        (altered(BOOK, SHEET, "id", "id", **{"/opt/evil.xml": "<a/>"}), "outside of the workbook, '/opt/evil.xml'"),
        (altered(BOOK, RELATIONS, "worksheets/sheet1.xml", "../../etc/passwd"), "sheet 'Sheet1' is a file outside"),
        (BOOK[:400] + BOOK[420:], "damaged"),
        (workbook(xml=WIDE), "the sheet 'Sheet1' has more than 1,000 columns; send only the one with the sentences"),
        (UNCLOSED, "line 2: .* never closed"),
    ],
    ids=["entities", "entities of a sheet", "path upwards", "absolute path", "target", "damaged", "wide", "quote"],
)
def test_a_hostile_file_is_refused_with_what_is_wrong_and_what_to_do(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as refused:
        isolated(content, Reading("sentences", "question"))
    assert any(remedy in str(refused.value) for remedy in ("save it again", "send only", "Double it"))


def test_ten_million_empty_rows_are_passed_over() -> None:
    empty = "".join(f'<row r="{number}"/>' for number in range(4, 1_000_000))
    content = workbook(xml=row(1, ["id", "text"]) + row(2, [1, "a b c d e f"]) + row(3, [2, "g h i j k l"]) + empty)
    assert isolated(content, Reading("sentences", "text"))[1] == ["a b c d e f", "g h i j k l"]
    facts, sentences = isolated(
        b"id,text\n1,a b c d e f g\n" + b"\n" * 2_000_000, Reading("sentences", "text", Hints(declared="csv"))
    )
    assert (sentences, facts["empty"]) == (["a b c d e f g"], 2_000_000)


def test_a_caller_who_leaves_ends_the_child() -> None:
    left, begun = threading.Event(), time.monotonic()
    threading.Timer(0.5, left.set).start()
    with tempfile.TemporaryFile() as file, pytest.raises(CallerLeft):
        file.write(b"id,text,state\n1,a b c d e f,open\n" + b",,\n" * 10_000_000)  # 20 s
        file.flush()
        read_isolated(file, Reading(hints=Hints(declared="csv")), LIMITS, left=left)
    assert time.monotonic() - begun < 10


def test_a_child_that_waits_for_something_is_ended() -> None:
    """A limit on processor time does not end it."""
    with (
        subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE) as child,
        pytest.raises(InvalidInput, match="60 seconds"),
    ):
        last_words(child, LIMITS, threading.Event(), patience=0.3)
    assert child.returncode < 0


def test_a_file_that_needs_more_memory_than_it_is_given_is_refused() -> None:
    content = b"\n".join(b'{"text": "%s"}' % (b"a" * 900_000) for _ in range(100))
    with pytest.raises(InvalidInput, match="cannot be read within 64 MB"):
        isolated(content, Reading("sentences"), Limits(100, 1000, 1_000_000, memory=64 << 20))
    with pytest.raises(InvalidInput, match="longer than 100 characters: 100 "):
        isolated(content, Reading("sentences"), Limits(100, 1000, 1_000_000))


@pytest.mark.parametrize("last", [2_000_000, 999])
def test_a_million_objects_with_a_thousand_keys_are_read_in_time(last: int) -> None:
    """Cells for each key of each object took more than the minute that a file has."""
    content = b"\n".join(b'{"key %d": "a b c d e f"}' % min(number, last) for number in range(1_000_000))
    assert isolated(content, Reading("sentences", "key 3"))[1] == ["a b c d e f"]


def test_a_fault_of_the_reader_itself_is_not_taken_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.chdir("/")
    with pytest.raises((RuntimeError, IsosimError)) as failed:
        isolated(b"a b c\n", Reading("sentences"), Limits(100, "many", 1000))  # type: ignore[arg-type]
    assert isinstance(failed.value, RuntimeError)
    assert "TypeError" in str(failed.value)


def test_a_file_of_the_users_own_is_named_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    file.write_bytes(b"id,question\n1,How do I log in?\n2,Where is it now?\n")
    refused = pytest.raises(InvalidInput, match=r"tickets\.csv: .* --column question")
    with refused, read_path(file, Reading("sentences"), LIMITS):
        pass


def test_the_parents_file_stays_open_for_others(tmp_path: Path) -> None:
    content = io.BytesIO(b"one sentence\nanother one\n")
    with tempfile.TemporaryFile() as file:
        file.write(content.getvalue())
        file.flush()
        for _ in range(2):
            assert read_isolated(file, Reading("sentences"), LIMITS)["sentences"] == 2


def test_modules_in_the_users_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("csv.py", "service.py"):
        (tmp_path / name).write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert isolated(b"a b c\n", Reading("sentences"))[1] == ["a b c"]
