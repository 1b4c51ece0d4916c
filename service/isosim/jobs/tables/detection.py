"""Detects four facts from a file's content: its format, encoding and separator, and whether it has a header.

A file's name and content type are only hints: browsers send CSV as `application/vnd.ms-excel`, and any file can be
named `.txt`.
"""

import codecs
import csv
import io
import json
import re
import statistics
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import BinaryIO, Literal, get_args

from isosim.errors import EmptyInput, InvalidInput, UnsupportedMedia
from isosim.jobs.table import (
    MARKUP,
    ONE_A_LINE,
    is_code,
    is_indented_json,
    is_markup,
    quoted_cells,
    some,
    table_of,
)
from isosim.wording import nearest

Format = Literal["text", "csv", "tsv", "ndjson", "parquet", "xlsx"]
FORMATS: tuple[Format, ...] = get_args(Format)

HEAD = 1 << 20  # maximum bytes at the beginning of a file from which its format is detected
LOOKED_AT = 1000  # maximum rows from which the format is detected
LONGEST_ROW = 1 << 20  # maximum characters of a line, or of a cell of CSV
MOST_COLUMNS = 1000  # maximum columns of a table
LONGEST_NAME = 64  # maximum characters of a column's name
# Minimum rows of a table with commas, semicolons or vertical bars. In a shorter text, all sentences may have the same
# number of commas by chance. A table with tabs may have fewer rows, because sentences rarely contain tabs.
MANY = 5
SEPARATORS = ("\t", ";", ",", "|")

MARKS = {
    codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# Accepted encodings. Python has others that are not encodings of files, such as `idna` and `undefined`.
ENCODINGS = (
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", *(f"windows-{page}" for page in range(1250, 1259)),
    *(f"iso-8859-{part}" for part in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 16)),
    "koi8-r", "koi8-u", "mac-roman", "cp437", "cp850", "cp866", "shift_jis", "euc-jp", "gb18030", "big5", "euc-kr",
    "iso-2022-jp", "iso-2022-jp-2", "iso-2022-jp-ext", "iso-2022-kr", "hz",
)  # fmt: skip
# Encodings that write all letters in ASCII bytes: what marks these letters -> the encodings, and the share of lines
# that must contain such letters. An escape sequence is certain; the mark of HZ also occurs in plain text.
SEVEN_BIT = {
    b"\x1b$": (("iso-2022-jp", "iso-2022-jp-2", "iso-2022-jp-ext", "iso-2022-kr"), 0.0),
    b"~{": (("hz",), 0.5),
}
CONTROLS = bytes({*range(32), 127} - set(b"\t\n\r\f\x1b"))
SEPARATOR_LINE = re.compile(r"sep=([\t;,|])\r?\n")  # first line of some CSV files, which tells Excel the separator
WESTERN = set("äöüÄÖÜßéèêëàâáãåæçîïíìñôòóõøœùûúÿýÉÈÀÂÁÅÆÇÊÎÍÑÓÔÕØŒÚÛ‘’“”„‚‹›«»–—…•€£¥©®™§°·¡¿´`²³½¼µ×\u00a0")
# Characters that rarely stand between two letters. For example, the Polish word `cały` becomes `ca³y` if it is decoded
# as windows-1252 by mistake.
INNER = set("¡¿²³½¼µ×©®™£¥§°´¹")

# Files that are refused. First bytes of the file -> part of the error message: kind of file, and remedy.
SIGNATURES = {
    b"%PDF": "a PDF; copy its text into a plain text file, one sentence a line, or export the table behind it as CSV",
    b"\xd0\xcf\x11\xe0": "a file of an old office program (.xls, .doc); save it as .xlsx or as CSV",
    b"\x1f\x8b": "packed (gzip); unpack it first: gunzip FILE",
    b"BZh": "packed (bzip2); unpack it first: bunzip2 FILE",
    b"\xfd7zXZ": "packed (xz); unpack it first: unxz FILE",
    b"\x28\xb5\x2f\xfd": "packed (zstd); unpack it first: unzstd FILE",
    b"7z\xbc\xaf": "packed (7z); unpack it first",
    b"\x93NUMPY": "a .npy of vectors; if your encoder takes vectors instead of texts, send it as application/x-npy",
    b"SQLite format 3": "an SQLite database; export the column with the sentences as CSV",
    b"{\\rtf": "rich text (.rtf); save it as plain text, UTF-8",
    b"\x89PNG": "a picture; it has no text to read",
    b"\xff\xd8\xff": "a picture; it has no text to read",
    b"\x7fELF": "a program; it has no text to read",
}
ZIPPED = {
    "word/document.xml": "a Word document (.docx); save it as plain text, UTF-8, one sentence a line",
    "ppt/presentation.xml": "a presentation (.pptx); save its text as plain text",
    "content.xml": "an OpenDocument file (.ods, .odt); save it as .xlsx, CSV or plain text",
    "xl/workbook.bin": "a binary Excel workbook (.xlsb); save it as .xlsx or as CSV",
}


@dataclass(frozen=True)
class FileForm:
    """How to read a file. `encoding` is None for binary formats. `certain` is False if the encoding is a guess."""

    format: Format
    encoding: str | None = None
    certain: bool = True
    separator: str | None = None
    quoted: bool = True  # whether cells may be in quotation marks


@dataclass(frozen=True)
class Hints:
    """What the user states about a file. A field that is None is detected from the content."""

    format: Format | None = None
    charset: str | None = None
    sheet: str | None = None
    header: bool | None = None
    declared: Format | None = None  # format according to the content type or file name; may be wrong
    lines: bool = False  # True: each line of a text is a sentence, even if the lines look like a table

    def __post_init__(self) -> None:
        """Raises InvalidInput if the format or the encoding is unknown."""
        if self.format is not None and self.format not in FORMATS:
            raise InvalidInput(f"format: {self.format[:40]!r} is not known; known are {', '.join(FORMATS)}")
        if self.charset is not None:
            encoding_named(self.charset)


def encoding_named(charset: str) -> str:
    """The encoding's usual name. Raises InvalidInput if it is unknown."""
    try:
        wanted = codecs.lookup(charset.strip()).name if charset.isascii() else ""
    except (LookupError, ValueError):  # ValueError: the name contains a NUL character
        wanted = ""
    for name in ENCODINGS:
        if codecs.lookup(name).name == wanted:
            return name
    near = nearest(charset, ENCODINGS)
    remedy = f"did you mean {near}?" if near else "common are utf-8, utf-16, windows-1252, windows-1251, iso-8859-2"
    raise InvalidInput(f"charset: {charset[:40]!r} is not known; {remedy}")


def detect(file: BinaryIO, hints: Hints) -> FileForm:
    """Detects how to read a file. Detects the encoding from the whole text, and all else from the first megabyte.
    Afterwards the file is at its beginning.

    Raises:
        EmptyInput: the file is empty or blank.
        UnsupportedMedia: the file is neither text nor a readable table; the message says what it is and what to do.
        InvalidInput: the encoding cannot be detected, the content contradicts the hints, or the file is damaged, a
            single JSON list, or markup (HTML or XML).
    """
    file.seek(0)
    head = file.read(HEAD)
    file.seek(0)
    if not head:
        raise EmptyInput("the file is empty")
    binary = binary_format(head, file)
    if binary is not None:
        if hints.format not in (None, binary):
            raise InvalidInput(f"format: {hints.format} was requested, but the file is {binary}")
        return FileForm(binary)
    if hints.format in ("parquet", "xlsx"):
        raise InvalidInput(
            f"format: {hints.format} was requested, but the file does not begin with the signature of that format"
        )
    encoding, certain = encoding_of(file, head, hints.charset)
    text = decoded_head(head, encoding)
    if not text.strip():
        raise EmptyInput("the file holds blank lines only")
    asked: Format | None = "text" if hints.lines and hints.format is None else hints.format
    form = text_form(text, asked or (None if hints.declared == "text" else hints.declared), asked=asked is not None)
    return FileForm(form.format, encoding, certain, form.separator, form.quoted)


def binary(begin: bytes) -> str | None:
    """Says what a body contains if it is not UTF-8 text, often with advice. None if the body may be UTF-8 text.

    `begin`: the first bytes of the body.
    """
    found = next((what for signature, what in SIGNATURES.items() if begin.startswith(signature)), None)
    if found is None and begin.startswith((b"PK\x03\x04", b"PAR1")):
        return "an Excel workbook, a Parquet file or an archive"
    if found is None and b"\0" in begin[:4096]:
        return "UTF-16 text or no text at all"
    return found


def binary_format(head: bytes, file: BinaryIO) -> Format | None:
    """`parquet`, `xlsx`, or None for other files. Raises UnsupportedMedia for known formats that cannot be read, and
    InvalidInput for a damaged workbook."""
    for begin, what in SIGNATURES.items():
        if head.startswith(begin):
            raise UnsupportedMedia(f"the file is {what}")
    if head.startswith(b"PAR1"):
        return "parquet"
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise InvalidInput(
            f"the file begins like an Excel workbook, but is cut off or damaged ({error}); save it again"
        ) from None
    if "xl/workbook.xml" in names:
        return "xlsx"
    what = next((why for name, why in ZIPPED.items() if name in names), "an archive (.zip); unpack it first")
    raise UnsupportedMedia(f"the file is {what}")


def encoding_of(file: BinaryIO, head: bytes, charset: str | None) -> tuple[str, bool]:
    """The encoding of a text, and whether it is certain.

    An encoding is certain if the caller names it, if a byte order mark states it, if the text is valid UTF-8, or if
    escape sequences mark its letters. Other text is decoded as windows-1252. If the result looks like a Western
    European language, windows-1252 is the guess.

    Raises:
        UnsupportedMedia: the file is not text.
        InvalidInput: its encoding cannot be detected, or the file is not text in the encoding `charset`.
    """
    if charset is not None:
        name = encoding_named(charset)
        check_decodes(file, name)
        return name, True
    for mark, name in MARKS.items():
        if head.startswith(mark):
            check_decodes(file, name)
            return name, True
    if b"\0" in head:
        raise without_mark(head)
    seven_bit = seven_bit_encoding(file, head)
    if seven_bit is not None:
        return seven_bit, True
    fault = decoding_fault(file, "utf-8")
    if len(head) - len(head.translate(None, CONTROLS)) > len(head) // 100:
        raise UnsupportedMedia("the file has bytes that are not text; send plain text, CSV, NDJSON, .xlsx or Parquet")
    if fault is None:
        return "utf-8", True
    if decoding_fault(file, "cp1252") is None and looks_western(file):
        return "windows-1252", False
    raise InvalidInput(
        f"the file is not UTF-8 ({fault}), and its encoding cannot be detected; name it with charset=NAME, for "
        "example windows-1251 or shift_jis, or save the file as UTF-8"
    )


def seven_bit_encoding(file: BinaryIO, head: bytes) -> str | None:
    """The encoding of a text whose bytes are ASCII, but whose letters are not; None for other text."""
    for mark, (names, share) in SEVEN_BIT.items():
        for name in names if mark in head and head.isascii() else ():
            if decoding_fault(file, name) is None:
                lines = decoded_head(head, name).splitlines()
                if sum(not line.isascii() for line in lines) > share * len(lines):
                    return name
    return None


def without_mark(head: bytes) -> Exception:
    """The error for a file with NUL bytes and no byte order mark. Suggests UTF-16 if the file is mostly letters and
    spaces when it is read as UTF-16."""
    for name in ("utf-16-le", "utf-16-be"):
        text = head[: len(head) // 2 * 2].decode(name, "replace")
        if sum(sign.isalnum() or sign in " \r\n\t.,;:?!-" for sign in text) > 0.8 * len(text) and " " in text:
            return InvalidInput(
                f"the file looks like UTF-16 without its byte order mark; confirm it with charset={name}, or save the "
                "file as UTF-8"
            )
    return UnsupportedMedia(
        "the file contains NUL bytes, so it is not text; send plain text, CSV, NDJSON, .xlsx or Parquet"
    )


def decoding_fault(file: BinaryIO, encoding: str) -> str | None:
    """Names the first line that cannot be decoded. None if all lines can be decoded. Afterwards the file is at its
    beginning."""
    decoder = codecs.getincrementaldecoder(encoding)()
    lines = 1
    file.seek(0)
    try:
        while chunk := file.read(HEAD):
            lines += decoder.decode(chunk).count("\n")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        fed = error.object[: error.start]
        return f"line {lines + fed.count(10)}"
    finally:
        file.seek(0)
    return None


def check_decodes(file: BinaryIO, encoding: str) -> None:
    fault = decoding_fault(file, encoding)
    if fault is not None:
        raise InvalidInput(f"the file is not text in {encoding} ({fault}); name its encoding with charset=NAME")


def looks_western(file: BinaryIO) -> bool:
    """Reads a file as windows-1252. True if few characters are beyond ASCII, and most of these belong to Western
    European languages."""
    file.seek(0)
    text = file.read(8 * HEAD).decode("cp1252", "replace")
    file.seek(0)
    beyond = [place for place, sign in enumerate(text) if sign > "\x7f"]
    letters = sum(map(str.isalpha, text))
    if len(beyond) > 0.25 * max(letters, 1):  # for example, in Cyrillic or Greek text
        return False
    strange = sum(
        text[place] not in WESTERN
        or (text[place] in INNER and text[place - 1 : place].isalpha() and text[place + 1 : place + 2].isalpha())
        for place in beyond
    )
    return strange <= 0.1 * len(beyond)


def decoded_head(head: bytes, encoding: str) -> str:
    """The decoded first bytes of a file, without the last line if it is cut off."""
    text = codecs.getincrementaldecoder(encoding)().decode(head).removeprefix("\ufeff")
    whole = text if len(head) < HEAD else text.rpartition("\n")[0]
    return whole or text


def text_form(text: str, declared: Format | None, *, asked: bool) -> FileForm:
    """Format and separator of decoded text. If `asked` is true, the user requires the format `declared`."""
    first = text.lstrip()[:1]
    if declared == "ndjson" or (declared is None and first in ("{", "[", '"')):
        if asked or is_ndjson(text):
            return FileForm("ndjson")
        if first == "[" and text.rstrip()[-1:] in ("]", ",", "}"):
            raise InvalidInput(f"the file is one JSON list; {ONE_A_LINE}")
    if declared == "text":
        return FileForm("text")
    if stated := SEPARATOR_LINE.match(text):
        return table_form(text[stated.end() :], stated[1])
    if declared in ("csv", "tsv"):
        return declared_table(text, declared)
    separator = separator_of(text)
    if separator is not None:
        return table_form(text, separator)
    lines = [line for line in text.splitlines()[: 2 * LOOKED_AT] if line.strip()]
    if is_markup(some(lines)):
        raise InvalidInput(f"the file looks like markup: {MARKUP}, add format=text")
    if is_indented_json(some(lines)):
        raise InvalidInput(f"the file looks like indented JSON; {ONE_A_LINE}")
    return table_form(text, ",") if quoted_cells(some(lines)) else FileForm("text")


def is_ndjson(text: str) -> bool:
    """Whether the first 20 lines are JSON objects or strings. If the first line is a string, checks LOOKED_AT lines: a
    plain text, for example a dialogue, may begin with 20 lines in quotation marks."""
    # Not `splitlines`, which also splits at U+2028. JSON strings may contain U+2028.
    lines = [line for line in text.split("\n", LOOKED_AT)[:LOOKED_AT] if line.strip()]
    if len(text) >= HEAD // 4:
        lines = lines[:-1] or lines  # the last line may be cut off
    strings = lines[0].lstrip().startswith('"')
    try:
        return all(isinstance(json.loads(line), dict | str) for line in (lines if strings else lines[:20]))
    except (ValueError, RecursionError):
        return False


def declared_table(text: str, declared: Format) -> FileForm:
    """The form of a file declared as CSV or TSV. Chooses the separator with which most rows have the same number of
    cells, at least two. Without such a separator, the table has a single column."""
    candidates = ("\t", ";", ",", "|") if declared == "tsv" else (";", ",", "\t", "|")
    best, separator = 0.0, "\t" if declared == "tsv" else ","
    for one in candidates:
        rows = records(text, one)
        width, same = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width > 1 and same / len(rows) > best + 1e-9:
            best, separator = same / len(rows), one
    return table_form(text, separator)


def table_form(text: str, separator: str) -> FileForm:
    quoted = separator != "\t" or has_quoted_cells(text)
    return FileForm("tsv" if separator == "\t" else "csv", separator=separator, quoted=quoted)


def separator_of(text: str) -> str | None:
    """The separator of a text that was not declared as a table; None if the text is not a table.

    A text is a table in three cases:
    1. Tabs split all rows into the same number of cells (at least two).
    2. Another separator does so, there are at least MANY rows, and the first row looks like column names.
    3. The lines look like rows (jobs/table.py).
    """
    for separator in SEPARATORS:
        rows = records(text, separator)
        width = len(rows[0]) if rows else 1
        if width < 2 or any(len(row) != width for row in rows):
            continue
        if separator == "\t" or (len(rows) >= MANY and all(map(is_column_name, rows[0])) and is_header(rows)):
            return separator
    table = table_of([line for line in text.splitlines()[: 2 * LOOKED_AT] if line.strip()])
    return None if table is None else table.separator


def is_column_name(cell: str) -> bool:
    return 0 < len(cell) <= LONGEST_NAME and not cell[:1].isspace() and len(cell.split()) <= 4


def records(text: str, separator: str) -> list[list[str]]:
    """The first rows of a text, split at this separator; empty if the text does not contain the separator."""
    if separator not in text:
        return []
    quoted = separator != "\t" or has_quoted_cells(text)
    rows: list[list[str]] = []
    lines = text if text.endswith(("\n", "\r")) else text + "\n"
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    try:
        for row in csv.reader(io.StringIO(lines, newline=""), delimiter=separator, quoting=quoting, strict=True):  # type: ignore[arg-type]
            if any(cell.strip() for cell in row):
                rows.append(row)
            if len(rows) == LOOKED_AT:
                break
    except csv.Error:
        return rows[:-1]
    return rows


def has_quoted_cells(text: str) -> bool:
    """Whether quotation marks enclose cells in a table with tabs. If not, all quotation marks are part of the text.

    True if at least one cell in quotation marks contains a tab, a line break or a quotation mark. Spreadsheet programs
    enclose such cells. Commas do not count, because quoted speech may contain commas.
    """
    if '"' not in text:
        return False
    reason = False
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
        for row, _ in zip(reader, range(LOOKED_AT), strict=False):
            reason = reason or any(set(cell) & set('\t\n\r"') for cell in row)
    except csv.Error:
        return False
    return reason


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has the names of the columns: short, distinct, and unlike the cells below them."""
    names, rest = [cell.strip() for cell in rows[0]], rows[1:200]
    while names and not names[-1]:
        names.pop()  # the rows end with separators, so the last names are empty
    if names and not names[0] and all(is_code(row[0].strip()) for row in rest if row):
        names, rest = names[1:], [row[1:] for row in rest]  # drops the column of row numbers that pandas and R write
    if not rest or not names or not all(names):
        return False
    if any(len(name) > LONGEST_NAME or is_code(name) for name in names):
        return False
    filled = [[cell.strip() for cell in column if cell.strip()] for column in zip_longest(*rest, fillvalue="")]
    columns = (filled + [[]] * len(names))[: len(names)]
    for cells in columns:
        if cells and sum(map(is_code, cells)) >= 0.8 * len(cells):
            return True  # the cells are numbers, dates or identifiers, and the name above them is not
    lengths = [statistics.median(map(len, cells)) if cells else 0.0 for cells in columns]
    place = max(range(len(names)), key=lengths.__getitem__)
    name = names[place]
    different = len({name.casefold() for name in names}) == len(names)
    return different and 2 * len(name) <= lengths[place] and len(name.split()) <= 4 and name[-1] not in ".?!"


def format_of_name(name: str) -> Format | None:
    """The format according to the ending of a file's name; None if the ending is unknown."""
    ending = name.rpartition(".")[2].lower()
    known: dict[str, Format] = {
        "txt": "text", "text": "text", "csv": "csv", "tsv": "tsv", "tab": "tsv", "ndjson": "ndjson", "jsonl": "ndjson",
        "parquet": "parquet", "pq": "parquet", "xlsx": "xlsx", "xlsm": "xlsx",
    }  # fmt: skip
    return known.get(ending)


def format_of_type(content_type: str) -> Format | None:
    """The format according to a content type; None if the type is unknown.

    `application/vnd.ms-excel` is not a known type: browsers send it for CSV too, if Excel is installed.
    """
    known: dict[str, Format] = {
        "text/plain": "text", "text/csv": "csv", "application/csv": "csv", "text/tab-separated-values": "tsv",
        "application/x-ndjson": "ndjson", "application/vnd.apache.parquet": "parquet",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    }  # fmt: skip
    return known.get(content_type)
