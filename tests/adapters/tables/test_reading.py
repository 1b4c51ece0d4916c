"""Files that people own: what they are recognized as, and what is read out of them."""

import csv
import doctest
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isosim.jobs.tables.reading
from isosim.errors import EmptyInput, InvalidInput, IsosimError, UnsupportedMedia
from isosim.jobs.tables.detection import FileForm, Hints, encoding_named
from isosim.jobs.tables.reading import Table, json_rows, open_table
from tests.workbooks import row, workbook, zipped

GERMAN = [
    "Wie öffne ich die Datei?",
    "Wo ist meine Rechnung?",
    "Ich kann mich nicht anmelden.",
    "Straße gesperrt – was nun?",
]
ROWS = [["id", "question", "state"], *([str(n), GERMAN[n % 4], "open"] for n in range(40))]
QUESTIONS = [row[1] for row in ROWS[1:]]


def read(content: bytes, hints: Hints | None = None) -> Table:
    return open_table(io.BytesIO(content), hints)


def column(content: bytes, name: str | None = None, hints: Hints | None = None) -> list[str]:
    table = read(content, hints)
    return [text for _, text in table.sentences(table.index(name))]


def table_text(rows: Sequence[Sequence[str]], separator: str) -> str:
    written = io.StringIO(newline="")
    csv.writer(written, delimiter=separator).writerows(rows)
    return written.getvalue()


def test_the_documentation_of_the_module_is_true() -> None:
    assert doctest.testmod(isosim.jobs.tables.reading).failed == 0


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("declared", [None, "csv", "text"])
def test_a_table_is_recognized_by_its_content(separator: str, encoding: str, declared: str | None) -> None:
    content = table_text(ROWS, separator).encode(encoding)
    hints = Hints(declared=declared, charset="utf-16-le" if encoding == "utf-16-le" else None)  # type: ignore[arg-type]
    table = read(content, hints)
    assert (table.columns, table.columns[table.suggested], table.header) == (ROWS[0], "question", True)
    assert table.form.separator == separator
    assert table.form.certain is (encoding != "cp1252")
    assert column(content, "question", hints) == QUESTIONS


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_plain_text_is_one_sentence_a_line(encoding: str) -> None:
    content = "\r\n".join([*GERMAN, "", *GERMAN]).encode(encoding)
    table = read(content)
    assert (table.form.format, table.columns) == ("text", ["text"])
    assert column(content) == [*GERMAN, *GERMAN]
    assert table.blank == 1


SEVEN_BIT = {
    "iso-2022-jp": [f"注文{n}の商品はどこですか。" for n in range(30)],
    "iso-2022-jp-ext": [f"ｶﾀｶﾅと注文{n}の商品" for n in range(30)],
    "iso-2022-kr": [f"주문 {n}은 어디에 있습니까?" for n in range(30)],
    "hz": [f"订单{n}在哪里?" for n in range(30)],
}


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("encoding", SEVEN_BIT)
def test_text_whose_bytes_are_ascii_is_decoded(encoding: str, table: bool) -> None:
    texts = SEVEN_BIT[encoding]
    lines = ["id\ttext", *(f"{n}\t{text}" for n, text in enumerate(texts))] if table else texts
    content = "\n".join(lines).encode(encoding)
    assert content.isascii()
    assert column(content, "text") == texts
    assert (read(content).form.encoding, read(content).form.certain) == (encoding, True)


def test_plain_text_with_a_mark_of_these_encodings_stays_ascii() -> None:
    texts = ["C++ is a language.", "1+1 = 2", "~{ and ~} are approximations.", "a+b-c"] * 30
    assert (column("\n".join(texts).encode()), read("\n".join(texts).encode()).form.encoding) == (texts, "utf-8")


@pytest.mark.parametrize("control", ["\x0e", "\x02"])
def test_ascii_with_many_control_characters_is_no_text(control: str) -> None:
    with pytest.raises((UnsupportedMedia, InvalidInput), match="not text"):
        list(read((f"9{control}J1{control}<< 5\n" * 30).encode()).sentences(0))


def test_sentences_with_commas_are_no_table() -> None:
    lines = ["Well, I do not know.", "First, open the door, then close it.", "No.", "Yes, yes, yes, of course."] * 30
    assert read("\n".join(lines).encode()).form.format == "text"


def test_a_short_list_with_a_comma_in_each_line_is_no_table() -> None:
    lines = ["Hello, how are you?", "Sorry, I am late.", "Thanks, that helps.", "No, not today.", "Yes, of course."]
    assert column("\n".join(lines).encode()) == lines


@pytest.mark.parametrize("name", ["wikipedia-en.txt", "reuters.txt", "films.txt"])
def test_text_of_the_measuring_data_is_no_table(data: Path, name: str) -> None:
    file = data / "text" / name
    if not file.is_file():
        file = sorted((data / "text").glob("*.txt"))[0]
    lines = file.read_bytes().split(b"\n")
    for start in range(0, min(len(lines), 20_000), 500):
        part = b"\n".join(lines[start : start + 500])
        if part.strip():
            assert read(part).form.format == "text", lines[start : start + 3]


def test_a_workbook_has_sheets_a_header_and_the_values_of_its_formulas() -> None:
    content = workbook([], [[1.0]], ROWS, names=["Empty", "Numbers", "Tickets"])
    assert read(content).sheet == "Tickets"  # the first that is no cover
    assert read(workbook([["a"]], [["b"], ["c"]])).sheet == "Sheet2"  # else the longest
    table = read(content, Hints(sheet="Tickets"))
    assert (table.sheets, table.columns) == (["Empty", "Numbers", "Tickets"], ROWS[0])
    assert column(content, "question", Hints(sheet="Tickets")) == QUESTIONS
    with pytest.raises(InvalidInput, match="there is no 'Ticket'; the sheets are Empty, Numbers, Tickets"):
        read(content, Hints(sheet="Ticket"))
    formulas = (
        row(1, ["id", "question"])
        + '<row r="2"><c r="A2"><f>1+1</f><v>2</v></c><c r="B2" t="str"><f>A2</f><v>two red cars</v></c></row>'
        '<row r="3"><c r="A3"><v>3</v></c><c r="B3"><f>WEBSERVICE("http://127.0.0.1/")</f></c></row>'
    )
    assert column(workbook(xml=formulas), "question") == ["two red cars", ""]


def test_json_lines_are_strings_or_objects() -> None:
    assert column("\n".join(map(json.dumps, GERMAN)).encode()) == GERMAN
    objects = "\n".join(json.dumps({"id": n, "question": text, "more": {"a": 1}}) for n, text in enumerate(GERMAN))
    assert read(objects.encode()).columns == ["id", "question", "more"]
    assert column(objects.encode(), "question") == GERMAN


def test_an_object_has_no_cells_behind_its_last_key() -> None:
    """With cells for every key of the file, reading 1,000,000 objects with 1,000 keys takes over a minute."""
    lines = [{f"key {number}": "a b c"} for number in range(1000)] + [{"key 3": "a b", "key 1": "c d"}]
    file = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    assert [len(cells) for _, cells in json_rows(file, FileForm("ndjson", "utf-8"))[1]] == [*range(1, 1001), 4]


def test_parquet_is_read_by_column() -> None:
    written = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(QUESTIONS)), "question": QUESTIONS}), written)
    assert column(written.getvalue(), "question") == QUESTIONS


CELLS = st.text(st.characters(exclude_categories=["C"], include_characters="\n"), max_size=20)


@given(st.lists(CELLS, min_size=2, max_size=20))
def test_what_a_writer_of_csv_writes_is_read_again(cells: list[str]) -> None:
    rows = [["number", "a sentence"], *([str(n), cell + "x"] for n, cell in enumerate(cells))]
    content = table_text(rows, ";").encode()
    found = column(content, "a sentence", Hints(declared="csv"))
    assert found == [" ".join(row[1].split()) if "\n" in row[1] else row[1].strip() for row in rows[1:]]


def test_a_cell_of_several_lines_is_one_sentence_and_rows_are_counted_by_their_first_line() -> None:
    content = b'id,text\n1,"one\ntwo"\n2,three\n'
    table = read(content, Hints(declared="csv"))
    assert list(table.sentences(1)) == [(2, "one two"), (4, "three")]


def test_quotation_marks_in_a_tsv_belong_to_the_text_where_no_spreadsheet_wrote_them() -> None:
    raw = b'5\t"Hello," he said.\tHe said hello.\n1\tA "small" car\tA "big" house\n' * 10
    assert next(read(raw, Hints(declared="tsv", header=False)).rows())[1][1] == '"Hello," he said.'
    whole = b'1\t"Hello there."\n2\tplain\n' * 10
    assert next(read(whole, Hints(header=False)).rows())[1][1] == '"Hello there."'
    written = b'1\t"He said ""no"" to me"\n2\tplain\n' * 10
    assert next(read(written, Hints(header=False)).rows())[1][1] == 'He said "no" to me'


def test_a_column_is_named_by_name_or_number_and_has_to_be_there() -> None:
    table = read(table_text(ROWS, ",").encode())
    assert table.index("question") == table.index("2") == 1
    with pytest.raises(
        InvalidInput, match=r"columns are id, question, state, or their numbers, 1 to 3\. Did you mean question"
    ):
        table.index("questions")
    with pytest.raises(InvalidInput, match=r"columns id, question, state; say which .* column=question"):
        table.index(None)
    twice = read(b"a,a,question\n" + b"1,2,How do I log in to it?\n" * 9, Hints(declared="csv"))
    with pytest.raises(InvalidInput, match="2 columns are called 'a'; give its number"):
        twice.index("a")


def test_a_header_can_be_denied_and_claimed() -> None:
    content = table_text(ROWS, ",").encode()
    denied = read(content, Hints(header=False))
    assert denied.columns == ["column 1", "column 2", "column 3"]
    assert next(denied.rows())[1] == ROWS[0]
    bare = table_text(ROWS[1:], ",").encode()
    assert read(bare).columns == ["column 1", "column 2", "column 3"]
    assert read(bare, Hints(header=True)).columns == ROWS[1]


def test_equal_names_are_no_header_and_few_rows_no_table_unless_the_file_is_called_one() -> None:
    twice = b"red,red\n" + b"How do I log in to it?,Where is my invoice now?\n" * 9
    assert read(twice, Hints(declared="csv")).header is False
    few = b"id,question\n1,How do I log in to it?\n2,Where is my invoice?\n"
    assert read(few).form.format == "text"
    assert read(few, Hints(declared="csv")).columns == ["id", "question"]


def test_a_row_with_too_many_cells_is_named() -> None:
    rows = table_text(ROWS, ",") + "41,Hello, you,open\n"
    with pytest.raises(InvalidInput, match="line 42 has 4 cells where the table has 3 columns"):
        list(read(rows.encode(), Hints(declared="csv")).rows())
    assert len(list(read((table_text(ROWS, ",") + "41,Hello,open,,\n42,short\n").encode()).rows())) == 42


REFUSED = {
    b"%PDF-1.7\n%...": "a PDF; copy its text",
    b"\xd0\xcf\x11\xe0\xa1\xb1": r"old office program .*save it as \.xlsx",
    b"\x1f\x8b\x08\x00": "gunzip",
    b"\x93NUMPY\x01\x00": "application/x-npy",
    zipped({"word/document.xml": ""}): "Word document",
    zipped({"content.xml": ""}): "OpenDocument",
    zipped({"notes.txt": "hello"}): "archive",
    bytes(range(256)) * 4: "NUL bytes",
    b"\x01\x02\x03\x04\x05\xff\xfe" * 40: "not text",
}


@pytest.mark.parametrize("content", REFUSED, ids=lambda content: repr(content[:8]))
def test_what_is_no_text_is_refused_with_what_to_do(content: bytes) -> None:
    with pytest.raises(UnsupportedMedia, match=REFUSED[content]):
        read(content)


@pytest.mark.parametrize("content", [b"", b"\n \n\n", workbook([]), b"\xef\xbb\xbf", "\ufeff\n".encode("utf-16")])
def test_an_empty_file_is_said_to_be_empty(content: bytes) -> None:
    with pytest.raises((EmptyInput, InvalidInput), match=r"empty|blank|no text"):
        read(content)


@pytest.mark.parametrize(
    ("content", "hints", "message"),
    [
        ("\n".join(GERMAN).encode("utf-16-le"), Hints(), "charset=utf-16-le"),
        ("\n".join(GERMAN).encode("utf-16-be"), Hints(), "charset=utf-16-be"),
        ("\n".join(["Привет, как дела сегодня?"] * 9).encode("utf-16-le"), Hints(), "charset=utf-16-le"),
        (
            "\n".join(["Привет, как дела сегодня"] * 9).encode("cp1251"),
            Hints(),
            "cannot be detected; name it with charset=",
        ),
        ("\n".join(["Zażółć gęślą jaźń i żółć"] * 9).encode("cp1250"), Hints(), "cannot be detected"),
        ("\n".join(["Mała szkoła stała obok pałacu."] * 9).encode("cp1250"), Hints(), "cannot be detected"),
        ("\n".join(GERMAN).encode("cp1252"), Hints(charset="utf-8"), "is not text in utf-8 .line 1"),
        (b"ab\n", Hints(format="xlsx"), "does not begin with the signature of that format"),
        (workbook(ROWS), Hints(format="csv"), "the file is xlsx"),
        (b"ab\n", Hints(sheet="a"), "applies only to Excel workbooks"),
        (b"ab\n", Hints(header=True), "applies only to CSV"),
        (b'[{"a": "b"},\n{"a": "c"}]\n', Hints(), "one JSON list.*jq"),
        (b"{\n" + b'"text":\n{\n' * 30 + b"}\n" * 31, Hints(), "looks like indented JSON.*jq"),
        (b'{"text": "a"}\n"b"\n', Hints(), "strings and others JSON objects"),
        (b'{"text": "a"}\n{"text"\n', Hints(format="ndjson"), "line 2 is not JSON"),
        (b'"\\ud800"\n', Hints(format="ndjson"), "half of a surrogate pair"),
        (b"a" * 2_000_000, Hints(), "line 1 is longer than 1,048,576 characters"),
        (b'id,text\n1,"' + b"word\n" * 400_000, Hints(declared="csv"), "line 2: a cell cannot be read.*never closed"),
        (workbook(ROWS)[:-30], Hints(), "cut off or damaged"),
        (b"PAR1 and no more", Hints(), "Parquet file cannot be read"),
    ],
    ids=lambda value: value[:40].replace("\\", "") if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_with_the_place_and_the_remedy(
    content: bytes, hints: Hints, message: str
) -> None:
    with pytest.raises(IsosimError, match=message):
        table = read(content, hints)
        list(table.rows())


def test_the_remedy_for_an_encoding_works() -> None:
    assert column("\n".join(GERMAN).encode("utf-16-le"), hints=Hints(charset="utf-16-le")) == GERMAN
    russian = ["Привет, как дела сегодня", "Где мой счёт?"]
    assert column("\n".join(russian).encode("cp1251"), hints=Hints(charset="windows-1251")) == russian
    polish = ["Zażółć gęślą jaźń", "Gdzie jest faktura?"]
    assert column("\n".join(polish).encode("iso-8859-2"), hints=Hints(charset="latin2")) == polish


@pytest.mark.parametrize("name", ["idna", "undefined", "rot13", "base64", "utf-7", "", "ü", "a" * 400, "\0"])
def test_only_encodings_of_files_can_be_named(name: str) -> None:
    with pytest.raises(InvalidInput, match="charset"):
        encoding_named(name)


def with_stray_quotes(*lines: int) -> bytes:
    rows = [f"{n},{chr(34) * (n in lines)}How do I log in to account {n}?,open\n" for n in range(2, 300)]
    return ("id,question,state\n" + "".join(rows)).encode()


@pytest.mark.parametrize("lines", [(7,), (299,), (7, 90)], ids=str)
def test_rows_are_not_lost_in_a_cell_that_is_never_closed(lines: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=f"line {lines[0]}: a cell cannot be read"):
        column(with_stray_quotes(*lines), "question", Hints(declared="csv"))


def test_misplaced_quotation_marks_within_a_line_are_read() -> None:
    content = b'id,question\n1,"Hello" he said\n2,a "quoted" word\n3,"two\nlines, one ""cell"""\n4,"the end"\n'
    read_there = ["Hello he said", 'a "quoted" word', 'two lines, one "cell"', "the end"]
    assert column(content, "question", Hints(declared="csv")) == read_there
    assert [number for number, _ in read(content, Hints(declared="csv")).rows()] == [2, 3, 4, 6]


@pytest.mark.parametrize("declared", [None, "csv"])
@pytest.mark.parametrize("names", [",question,state", '"","question","state"'], ids=["pandas", "R"])
def test_a_column_of_row_numbers_needs_no_name(names: str, declared: str | None) -> None:
    content = "\n".join([names, *(f"{n},{GERMAN[n % 4]},open" for n in range(40))]).encode()
    hints = Hints(declared=declared)  # type: ignore[arg-type]
    assert read(content, hints).columns == ["column 1", "question", "state"]
    assert column(content, "question", hints) == QUESTIONS


def test_rows_of_a_sheet_have_the_numbers_that_the_spreadsheet_shows() -> None:
    rows = "".join(row(number, ["id", "question"] if number == 5 else [number, GERMAN[0]]) for number in (5, 6, 8, 9))
    assert [number for number, _ in read(workbook(xml=rows)).every_row()] == [5, 6, 8, 9]


@pytest.mark.parametrize("before", [3, 2000])
def test_labels_among_sentences_are_not_left_out_in_silence(before: int) -> None:
    lines = [*[json.dumps({"text": GERMAN[0]})] * before, json.dumps({"a": "x y", "b": "x z", "label": 1})]
    with pytest.raises(InvalidInput, match=f"line {before + 1} is a labelled pair, .* application/x-ndjson"):
        column("\n".join(lines).encode(), "text")
    pairs = "\n".join(lines[-1:] * 30).encode()
    assert column(pairs, "a") == ["x y"] * 30


def test_a_dialogue_that_begins_with_whole_lines_in_quotation_marks_is_text() -> None:
    lines = [*[f'"{text}"' for text in GERMAN * 10], '"Where is it?" she asked.']
    assert column("\n".join(lines).encode()) == lines
    assert column("\n".join(lines[:-1]).encode()) == GERMAN * 10
    assert column("\n".join(['"one\u2028sentence"'] * 30).encode()) == ["one\u2028sentence"] * 30


@pytest.mark.parametrize("declared", [None, "csv", "text"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_first_line_that_names_the_separator_for_excel_is_obeyed_and_no_row(separator: str, declared: str) -> None:
    hints = Hints(declared=declared)  # type: ignore[arg-type]
    content = f"sep={separator}\r\n{table_text(ROWS, separator)}".encode("utf-8-sig")
    table = read(content, hints)
    assert (table.columns, table.form.separator) == (ROWS[0], separator)
    assert column(content, "question", hints) == QUESTIONS
    assert next(table.every_row())[0] == 2


def one_column(texts: Sequence[str]) -> bytes:
    return table_text([["headline"], *([text] for text in texts)], ",").encode()


def test_a_csv_with_one_column_is_no_text_whatever_it_is_called() -> None:
    texts = [f'She said "no {n}", and left.' if n % 3 else f"Plain sentence {n}." for n in range(60)]
    for declared in (None, "text", "csv"):
        hints = Hints(declared=declared)  # type: ignore[arg-type]
        table = read(one_column(texts), hints)
        assert (table.form.format, table.columns, table.header) == ("csv", ["headline"], True)
        assert column(one_column(texts), None, hints) == texts
    dialogue = [f'"I left {n} times," she said.' if n % 2 else f'"Well, no {n}."' for n in range(60)]
    assert column("\n".join(dialogue).encode()) == dialogue
    with pytest.raises(InvalidInput, match="this file is text; if it is a CSV with one column, add format=csv"):
        read("\n".join(GERMAN).encode(), Hints(header=True))


def test_markup_is_refused_and_read_where_it_is_meant() -> None:
    content = "\n".join(f"<p>{text}</p>" for text in QUESTIONS).encode()
    with pytest.raises(InvalidInput, match=r"most lines begin with a tag, as in HTML or XML; .* format=text"):
        read(content)
    assert column(content, None, Hints(format="text")) == content.decode().splitlines()
    assert len(column("\n".join(f"{text} a < b > c" for text in QUESTIONS).encode())) == len(QUESTIONS)


def test_columns_of_bytes_and_lists_are_neither_suggested_nor_taken_for_text() -> None:
    names = [f"n{n}" for n in range(12)]
    written = io.BytesIO()
    columns = {name: list(range(40)) for name in names} | {
        "bin": [text.encode("utf-16") * 9 for text in QUESTIONS], "lst": [[text] * 9 for text in QUESTIONS],
        "obj": [{"a": text * 9} for text in QUESTIONS], "sv": QUESTIONS,
    }  # fmt: skip
    pq.write_table(pa.table(columns), written)
    table = read(written.getvalue())
    with pytest.raises(InvalidInput, match=f"{', '.join([*names, 'bin', 'lst', 'obj', 'sv'])}; .* example column=sv"):
        table.index(None)
    for name in ("bin", "lst", "obj"):
        with pytest.raises(InvalidInput, match=f"'{name}' holds values of the type .*, no text; .* column=sv"):
            table.index(name)
    assert column(written.getvalue(), "sv") == QUESTIONS


def test_a_column_without_a_name_is_suggested_by_its_number() -> None:
    table = read(table_text(ROWS[1:], ",").encode())
    with pytest.raises(InvalidInput, match=r"for example column=2$"):
        table.index(None)
    with pytest.raises(InvalidInput, match=r"there is no '0'; the columns are .*, or their numbers, 1 to 3\."):
        table.index("0")


def test_objects_with_too_many_keys_are_refused_before_they_are_read() -> None:
    lines = [json.dumps({f"k{n}-{m}": "a" for m in range(3)}) for n in range(500)]
    with pytest.raises(InvalidInput, match="1,500 columns; the limit is 1,000; send only the column"):
        read("\n".join(lines).encode())
