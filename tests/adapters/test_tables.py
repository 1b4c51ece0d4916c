"""Files that people own: how they are read as what they are declared, and what is refused with a remedy."""

import csv
import doctest
import io
import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isosim.errors import EmptyInput, InvalidInput, IsosimError, UnsupportedMedia
from isosim.jobs import tables
from isosim.jobs.tables import Table, open_table
from isosim.jobs.text_lines import READ, opened, read_lines
from tests.text import sentences
from tests.workbooks import row, workbook, zipped

GERMAN = [
    "Wie öffne ich die Datei?",
    "Wo ist meine Rechnung?",
    "Ich kann mich nicht anmelden.",
    "Straße gesperrt – was nun?",
]
ROWS = [["id", "question", "state"], *([str(n), GERMAN[n % 4], "open"] for n in range(40))]
QUESTIONS = [row[1] for row in ROWS[1:]]
TEXTS = sentences(600)


def read(content: bytes, kind: Any = None, **options: Any) -> Table:
    return open_table(io.BytesIO(content), kind, **options)


def column(content: bytes, name: str | None = None, kind: Any = None, **options: Any) -> list[str]:
    table = read(content, kind, **options)
    return [text for _, text in table.sentences(table.index(name))]


def lines(*texts: str) -> bytes:
    return "\n".join(texts).encode()


def table_text(rows: Sequence[Sequence[Any]], separator: str, **options: Any) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator, **options).writerows(rows)
    return written.getvalue()


def parquet(**columns: Any) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


def test_the_documentation_of_the_module_is_true() -> None:
    assert doctest.testmod(tables).failed == 0


ENCODINGS = {"utf-8": True, "utf-8-sig": True, "utf-16": True, "utf-32": True, "utf-16-be": True, "cp1252": False}


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", [None, "csv", "text"])
def test_every_separator_in_every_encoding(separator: str, encoding: str, kind: str | None) -> None:
    content = table_text(ROWS, separator).encode(encoding)
    if kind == "text":
        with pytest.raises(InvalidInput, match=r"look like a table, split at .* format 'csv' .* column 'question'"):
            read(content, kind)
        assert len(column(content, kind=kind, force=True)) == len(ROWS)
        return
    table = read(content, kind)
    assert (table.columns, table.columns[table.suggested], table.certain) == (ROWS[0], "question", ENCODINGS[encoding])
    assert (table.separator, table.header) == (separator, (1, ROWS[0]))
    assert column(content, "question", kind) == QUESTIONS


# Text that is declared as text, and text that chardet must decode.
JAPANESE, CHINESE, RUSSIAN = ["注文の商品はどこですか。"], ["订单在哪里? 我们的商品"], ["Привет, как дела сегодня?"]
DECODED = {
    "utf-16": GERMAN, "utf-16-le": GERMAN, "cp1252": GERMAN, "cp1250": ["Zażółć gęślą jaźń i żółć"], "cp1251": RUSSIAN,
    "koi8-r": RUSSIAN, "shift_jis": JAPANESE, "gb18030": CHINESE, "iso-2022-jp": JAPANESE,
    "iso-2022-kr": ["주문은 어디에 있습니까?"], "iso-2022-jp-ext": ["ｶﾀｶﾅと注文の商品"],
}  # fmt: skip


@pytest.mark.parametrize("encoding", DECODED)
def test_text_of_any_encoding_is_decoded_or_its_encoding_can_be_named(encoding: str) -> None:
    texts = [f"{text} {n}" for n in range(30) for text in DECODED[encoding]]
    content = "\r\n".join([*texts, ""]).encode(encoding)
    assert column(content, None, "text") == texts
    assert read(content, "text").certain is encoding.startswith(("utf", "iso-2022"))
    assert column(content, None, "text", charset=encoding) == texts


def test_lines_end_at_line_feeds_alone() -> None:
    texts = [f"第{n}句话\u2028没有换行\u0085，也没有空格。" for n in range(230)]
    assert column("\r\n".join(texts).encode(), None, "text") == texts


def test_utf_8_with_a_control_character_stays_utf_8() -> None:
    for before, text in ((0, "Straße\x02 gesperrt"), (0, "注文\x01の商品"), (100_000, "plain\x1f text")):
        table = read(b"plain\n" * before + lines(*[text] * 3))
        assert (table.encoding, table.certain) == ("utf-8", True), text


def test_a_byte_that_is_not_utf_8_is_found_behind_the_first_block() -> None:
    content = b"plain\n" * tables.BLOCK + "Straße und Füße\n".encode("cp1252") * 30
    assert read(content).encoding == "windows-1252"


# Text, and text that is a table, if it is declared as text.
PROSE = {
    "plain": TEXTS,
    "commas": ["Well, I do not know.", "First, open the door, then close it.", "No.", "Yes, yes, of course."] * 30,
    "greetings": [f"{'Dear Sir' if n % 2 else 'Hi'}, {text}" for n, text in enumerate(TEXTS)],
    "endings": [f"{text[:-1]}, please." for text in TEXTS],
    "numbered": [f"{n}. {text}" for n, text in enumerate(TEXTS)],
    "years": [f"{1900 + n % 120}, {text}" for n, text in enumerate(TEXTS)],
    "thousands": [f"Shares fell {n},{n % 900 + 100} points, to 1,{n % 900 + 100}." for n in range(600)],
    "names": [f"Turing, Alan {n}" for n in range(600)],
    "chinese": [f"您好,我的打印机{a}坏了,请{b}" for a, b in itertools.product("一二三四五六七八九十", repeat=2)],
    "bullets": [f"| {text}" if n % 2 else text for n, text in enumerate(TEXTS)],
    "quotes": [f'"I left {n} times," she said.' if n % 2 else f'"Well, no {n}."' for n in range(60)],
    "few": ["Hello, how are you?", "Sorry, I am late.", "Thanks, that helps.", "No, not today."],
    "brackets": ["[" * 1000] * 3,
}


@pytest.mark.parametrize("name", PROSE)
def test_prose_is_text(name: str) -> None:
    for kind in (None, "text"):
        assert column(lines(*PROSE[name]), None, kind) == PROSE[name]


TABLES: dict[str, Any] = {
    "id, date, text, state": lambda n, text: (n, f"2026-01-{1 + n % 28:02d}", text, "open"),
    "text, id": lambda n, text: (text, f"TICKET-{n}"),
    "uuid, text, score": lambda n, text: (f"{n * 7919:08x}-1f2e", text, f"{n % 100 / 100:.2f}"),
    "label, text, text": lambda n, text: (n % 2, text, TEXTS[(n + 7) % 600]),
}


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_declared_as_text_is_refused(name: str, separator: str, header: bool) -> None:
    rows = [name.split(", ")] * header + [TABLES[name](number, text) for number, text in enumerate(TEXTS)]
    with pytest.raises(InvalidInput, match=r"look like a table.*perhaps column ['\d].*; .*force"):
        read(table_text(rows, separator).encode(), "text")


def test_no_text_of_the_measuring_data_is_refused(data: Path) -> None:
    rng = random.Random(0)
    for file in sorted(data.glob("text/*.txt")):
        every = [line for line in file.read_text().split("\n") if line.strip()]
        for size in (200, 500, 2000):
            start = rng.randrange(max(1, len(every) - size))
            assert read(lines(*every[start : start + size]), "text").kind == "text", (file, start)
            assert read(lines(*every[start : start + size])).kind == "text", (file, start)
    for file in data.glob("sts/*/*.tsv"):
        with pytest.raises(InvalidInput, match="look like a table"):
            read(file.read_bytes(), "text")


@pytest.mark.parametrize(
    ("texts", "remedy"),
    [
        ([json.dumps({"id": n, "headline": text}) for n, text in enumerate(TEXTS)], "JSON; .* format 'ndjson'"),
        ([json.dumps(text) for text in TEXTS], "JSON; .* format 'ndjson'"),
        (json.dumps(TEXTS, indent=1).splitlines(), "JSON; write one JSON value a line"),
        ([json.dumps(TEXTS)], "JSON; write one JSON value a line"),
    ],
    ids=["objects", "strings", "indented", "list"],
)
def test_other_forms_than_text_are_refused_with_the_way_to_send_them(texts: list[str], remedy: str) -> None:
    with pytest.raises(InvalidInput, match=remedy):
        read(lines(*texts), "text")
    assert column(lines(*texts), None, "text", force=True) == [text.strip() for text in texts]


def test_a_workbook_has_sheets_a_header_and_the_values_of_its_formulas() -> None:
    content = workbook([], [[1.0]], ROWS, names=["Empty", "Numbers", "Tickets"])
    assert read(content).sheet == "Tickets"  # the longest
    table = read(content, "xlsx", sheet="Tickets")
    assert (table.sheets, table.columns) == (["Empty", "Numbers", "Tickets"], ROWS[0])
    assert column(content, "question", sheet="Tickets") == QUESTIONS
    formulas = (
        row(5, ["id", "question"])
        + '<row r="6"><c r="A6"><f>1+1</f><v>2</v></c><c r="B6" t="str"><f>A6</f><v>two red cars</v></c></row>'
        '<row r="8"><c r="A8"><v>3</v></c><c r="B8"><f>WEBSERVICE("http://127.0.0.1/")</f></c></row>'
    )
    table = read(workbook(xml=formulas))
    assert list(table.sentences(table.index("question"))) == [(6, "two red cars"), (8, "")]


def test_json_lines_are_strings_or_objects() -> None:
    assert column(lines(*map(json.dumps, GERMAN))) == GERMAN
    objects = lines(*(json.dumps({"id": n, "question": text, "more": {"a": 1}}) for n, text in enumerate(GERMAN)))
    assert read(objects).columns == ["id", "question", "more"]
    assert column(objects, "question") == GERMAN
    assert column(lines(*['"one\u2028sentence"'] * 30)) == ["one\u2028sentence"] * 30


def test_columns_of_parquet_that_hold_no_text_are_left_out() -> None:
    content = parquet(
        id=range(40), bin=[text.encode("utf-16") * 9 for text in QUESTIONS], lst=[[text] * 9 for text in QUESTIONS],
        obj=[{"a": text} for text in QUESTIONS], question=QUESTIONS,
    )  # fmt: skip
    assert read(content).columns == ["id", "question"]
    assert column(content, "question") == QUESTIONS


CELLS = st.text(st.characters(exclude_categories=["C"], include_characters="\n"), max_size=20)


@given(st.lists(CELLS, min_size=2, max_size=20))
def test_what_a_writer_of_csv_writes_is_read_again(cells: list[str]) -> None:
    rows = [["number", "a sentence"], *([str(n), cell + "x"] for n, cell in enumerate(cells))]
    found = column(table_text(rows, ";").encode(), "a sentence", "csv", header=True)
    assert found == [" ".join(row[1].split("\n")).strip() for row in rows[1:]]


def test_a_cell_of_several_lines_is_one_sentence_and_rows_are_counted_by_their_first_line() -> None:
    table = read(b'id,text\n1,"one\ntwo"\n\n2,three\n', "csv")
    assert list(table.sentences(1)) == [(2, "one two"), (5, "three")]
    assert table.blank == 1


def test_quotation_marks_in_a_tsv_belong_to_the_text_where_no_spreadsheet_wrote_them() -> None:
    def first(content: bytes) -> str:
        return next(read(content * 10, "tsv", header=False).filled())[1][1]

    assert first(b'5\t"Hello," he said.\n1\tA "small" car\n') == '"Hello," he said.'
    assert first(b'1\t"Hello there."\n2\tplain\n') == '"Hello there."'
    assert first(b'1\t"He said ""no"" to me"\n2\tplain\n') == 'He said "no" to me'


def test_a_column_is_named_by_name_or_number_and_has_to_be_there() -> None:
    table = read(table_text(ROWS, ",").encode())
    assert table.index("question") == table.index("2") == 1
    with pytest.raises(
        InvalidInput,
        match=r"no column is called 'questions'; the columns are id, question, state, or",
    ):
        table.index("questions")
    with pytest.raises(InvalidInput, match=r"columns id, question, state; say which .* column 'question'"):
        table.index(None)
    with pytest.raises(InvalidInput, match=r"for example column 2$"):
        read(table_text(ROWS[1:], ",").encode(), "csv").index(None)
    twice = read(b"a,a,question\n" + b"1,2,How do I log in to it?\n" * 9, "csv", header=True)
    with pytest.raises(InvalidInput, match="several columns are called 'a'; the columns are"):
        twice.index("a")


def test_a_header_is_detected_and_can_be_denied_and_claimed() -> None:
    content, bare = table_text(ROWS, ",").encode(), table_text(ROWS[1:], ",").encode()
    denied = read(content, header=False)
    assert (denied.columns, next(denied.filled())[1]) == (["column 1", "column 2", "column 3"], ROWS[0])
    assert read(bare, "csv").columns == ["column 1", "column 2", "column 3"]
    assert read(bare, header=True).columns == ROWS[1]
    assert read(b"red,red\n" + b"How do I log in to it?,Where is my invoice now?\n" * 9, "csv").header is None
    short = b"text,by\n" + b"Yes.,Ann\nNo.,Joe\n" * 9
    assert [read(short, "csv", column=name).columns[0] for name in (None, "text", "1")] == [
        "column 1",
        "text",
        "column 1",
    ]
    one = table_text([["headline"], *([f'She said "no {n}", and left.'] for n in range(60))], ",").encode()
    assert (read(one, "csv").columns, len(column(one, None, "csv"))) == (["headline"], 60)
    for names in (",question,state", '"","question","state"'):  # pandas' and R's column of row numbers
        assert read(lines(names, *(f"{n},{GERMAN[n % 4]},open" for n in range(40)))).columns[1:] == ROWS[0][1:]


def with_stray_quotes(*places: int) -> bytes:
    return lines("id,question", *(f"{n},{chr(34) * (n in places)}How do I log in to {n}?" for n in range(2, 300)))


EMPTY = [b"", b"\n \n\n", workbook([]), b"\xef\xbb\xbf", "\ufeff\n".encode("utf-16")]
REFUSED: list[tuple[bytes, dict[str, Any], type[IsosimError], str]] = [
    *((content, {}, EmptyInput, "empty|no text") for content in EMPTY),
    (b"%PDF-1.7\n%...", {}, UnsupportedMedia, "application/pdf; send plain text.* Copy the text out of a PDF"),
    (b"%PDF-1.7\n%...", {"kind": "text"}, UnsupportedMedia, "application/pdf"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1", {}, UnsupportedMedia, "save an old workbook"),
    (b"\x1f\x8b\x08\x00", {}, UnsupportedMedia, "gzip.* unpack"),
    (bytes(range(256)) * 4, {}, UnsupportedMedia, "not text but application/octet-stream"),
    (b"9\x0eJ1\x0e<< 5\n" * 30, {}, UnsupportedMedia, "not text"),
    (workbook(ROWS), {"kind": "csv"}, UnsupportedMedia, "application/"),
    (zipped({"word/document.xml": ""}), {}, InvalidInput, "workbook cannot be read"),
    (workbook(ROWS)[:-30], {}, InvalidInput, "workbook cannot be read.*save it again"),
    (workbook(ROWS), {"sheet": "Ticket"}, InvalidInput, "there is no 'Ticket'; the sheets are Sheet1"),
    (b"ab\n", {"kind": "xlsx"}, InvalidInput, "workbook cannot be read"),
    (b"PAR1 and no more", {}, InvalidInput, "Parquet file cannot be read"),
    (b"ab\n", {"sheet": "a"}, InvalidInput, "applies only to Excel workbooks"),
    (
        lines(*GERMAN).replace(b"Stra", b"\xff"),
        {"charset": "utf-8"},
        InvalidInput,
        "line 4 is not utf-8; charset can name",
    ),
    (b"ab\n", {"charset": "rot13"}, InvalidInput, "charset: 'rot13' is not known"),
    (b"ab\n", {"charset": "\0"}, InvalidInput, "charset"),
    (b"+2AA-\n", {"charset": "UTF7"}, InvalidInput, "charset: 'UTF7' is not known"),  # half of a surrogate pair
    (b"\\ud800\n", {"charset": "unicode_escape"}, InvalidInput, "is not known"),
    (b"\\ud800\n", {"charset": "raw-unicode-escape"}, InvalidInput, "is not known"),
    (b"xn--a\n", {"charset": "idna"}, InvalidInput, "is not known"),  # takes minutes for a megabyte
    (b"a-b\n", {"charset": "punycode"}, InvalidInput, "is not known"),
    (b"ab\n", {"charset": "undefined"}, InvalidInput, "is not known"),
    (b'{"text": "a"}\n{"text"\n', {"kind": "ndjson"}, InvalidInput, "line 2 is not JSON"),
    (b'{"text": "a"}\n1\n', {"kind": "ndjson"}, InvalidInput, 'line 2: expected "a sentence"'),
    (b'{"text": "a"}\n["b"]\n', {"kind": "ndjson"}, InvalidInput, 'line 2: expected "a sentence"'),
    (b'{"text": NaN}\n', {"kind": "ndjson"}, InvalidInput, "line 1 is not JSON"),
    (b'"\\ud800"\n', {"kind": "ndjson"}, InvalidInput, "line 1 is not JSON: .*surrogate"),
    (
        lines(*(json.dumps({f"a{n}": 1, f"b{n}": 1}) for n in range(600))),
        {},
        InvalidInput,
        "1,200 columns; .* send only",
    ),
    (b"a" * 2_000_000, {}, InvalidInput, "line 1 is longer than 1,048,576 characters"),
    (b'id,text\n1,"' + b"word\n" * 400_000, {"kind": "csv"}, InvalidInput, "line 2: a cell cannot be read.*Double it"),
    (with_stray_quotes(7), {"kind": "csv"}, InvalidInput, "line 7: a cell cannot be read"),
    (with_stray_quotes(7, 90), {"kind": "csv"}, InvalidInput, "line 7: a cell cannot be read"),
    ((table_text(ROWS, ",") + "41,Hello, you,open\n").encode(), {}, InvalidInput, "line 42 has 4 cells .* 3 columns"),
]


@pytest.mark.parametrize(("content", "options", "kind", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_read_is_refused_with_the_place_and_the_remedy(
    content: bytes, options: dict[str, Any], kind: type[IsosimError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        list(read(content, **options).filled())


def test_lines_longer_and_shorter_than_a_read_come_whole(tmp_path: Path) -> None:
    texts = ["é" * n for n in (1, READ // 2 - 1, READ, 3 * READ, 0, 7)]
    (tmp_path / "t").write_text("\n".join(texts), encoding="utf-8")
    assert read_lines(tmp_path / "t") == texts


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\nb\n", ["a", "", "b"]),
        ("\ufeffä\r\n文".encode("utf-16-le"), ["ä", "文"]),
        (b"a\x0cb", ["a\fb"]),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "t").write_bytes(content)
    assert read_lines(tmp_path / "t") == lines


@pytest.mark.parametrize(
    ("bad", "said"),
    [(b"sch\xf6n", "is not UTF-8"), ("注文".encode("iso-2022-jp"), "has a control character")],  # read as ASCII
)
def test_a_line_that_is_no_text_is_named_by_its_number(tmp_path: Path, bad: bytes, said: str) -> None:
    (tmp_path / "t").write_bytes(b"fine\n" * 20_000 + bad + b"\n")
    with pytest.raises(InvalidInput, match=f"line 20001 {said}"):
        read_lines(tmp_path / "t")


def test_an_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"x" * 10 * READ)
    with opened(tmp_path / "t", longest=1000) as lines, pytest.raises(InvalidInput, match="line 1"):
        next(lines.blocks())
    assert lines.seen == READ


def test_a_text_without_words_is_empty(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("\n \n")
    with pytest.raises(EmptyInput, match="is empty"):
        read_lines(tmp_path / "t")


def test_a_files_share_rises_to_one_and_a_pipe_has_none(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"line\n" * READ)
    with opened(tmp_path / "t") as lines:
        shares = [lines.share for _ in lines.blocks()]
    assert shares == sorted(shares)  # type: ignore[type-var]
    assert shares[-1] == 1.0
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with opened(tmp_path / "pipe") as lines:
        assert lines.share is None
    os.close(writer)
