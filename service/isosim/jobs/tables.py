"""Reads the rows of a file: plain text, CSV of any separator, lines of JSON, Parquet or an Excel workbook.

The declared kind of a file wins; only the kind of an undeclared file is detected from its content. Text may have any
encoding: a byte order mark states it; otherwise UTF-8 is tried, then chardet's guess.

>>> import io
>>> table = open_table(io.BytesIO(b"id;question\\n1;How do I log in?\\n2;Where is my invoice?\\n"), "csv")
>>> table.columns, table.suggested
(['id', 'question'], 1)
>>> [text for _, text in table.sentences(table.index("question"))]
['How do I log in?', 'Where is my invoice?']
"""

import codecs
import csv
import io
import itertools
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, get_args

import orjson

from isosim.errors import EmptyInput, InvalidInput, UnsupportedMedia
from isosim.jobs.text_lines import TextLines, encoding_of_mark
from isosim.wording import named

Kind = Literal["text", "csv", "tsv", "ndjson", "parquet", "xlsx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# (number, cells). In a text file, `number` is the line in which the row begins, counted from 1. In a workbook or a
# Parquet file, `number` is the row, counted from 1.
Row = tuple[int, list[str]]
JsonRow = tuple[int, dict[str, Any]]

BLOCK = 1 << 18  # bytes at the beginning of a file from which its form is detected
LOOKED_AT = 1000  # maximum rows from which header, separator and columns are detected
LONGEST_ROW = 1 << 20  # maximum characters of a line, or of a cell of CSV
MOST_COLUMNS = 1000
LONGEST_NAME = 64  # maximum characters of a column's name
FEW_ROWS = 20  # fewer lines may look alike by chance
MANY = 5  # minimum rows of a table whose separator also occurs in prose
MOST = 0.8  # share of lines that must look alike
SURE = 0.9  # chardet is this confident of escape sequences and of UTF-16, and far less of guesses from letters
SEPARATORS = "\t|;,"
UNUSUAL = re.compile(rb"\A%PDF|[\0-\x08\x0e-\x1f]")  # in UTF-16, in ISO-2022 and in files that are not text
# Encodings of Python's own, of names of domains and of old mail. Their text may hold half of a surrogate pair, or take
# minutes to decode.
NO_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"}
CODE = re.compile(r"(?=.*[0-9])[!-~]{1,40}|[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4} [0-9:]{4,}[!-~ ]{0,20}")


@dataclass
class Table:
    """A file's rows. `rows` begin after the header and can be read once; those of JSON are objects."""

    kind: Kind
    columns: list[str]
    rows: Iterator[Row] | Iterator[JsonRow]
    first: list[list[str]]  # the cells of the first of `rows`, which still yields them
    encoding: str | None = None  # None for binary files
    certain: bool = True  # False if the encoding is a guess
    separator: str | None = None
    header: Row | None = None
    sheets: list[str] = field(default_factory=list)
    sheet: str | None = None
    blank: int = 0  # number of blank rows so far

    @property
    def suggested(self) -> int:
        """Index of the column that probably holds the sentences: the longest text, leaving out columns of codes."""
        columns = transposed([[""] * len(self.columns), *self.first])[: len(self.columns)]
        lengths = [sum(len(cell) for cell in cells if not is_code(cell)) for cells in columns]
        return lengths.index(max(lengths))

    @property
    def hint(self) -> str:
        """The words for choosing the suggested column, by its name or, if it has none, by its number."""
        unnamed = self.header is None and self.kind not in ("ndjson", "parquet")
        return f"column {self.suggested + 1 if unnamed else self.columns[self.suggested][:80]!r}"

    def place(self, number: int) -> str:
        return f"{'row' if self.encoding is None else 'line'} {number}"

    def filled(self) -> Iterator[Row]:
        """The rows that are not blank, with at most as many cells as there are columns.

        Raises:
            InvalidInput: a row cannot be read or has too many cells; the message names the row.
        """
        width = len(self.columns)
        for number, row in self.rows:
            cells = row if isinstance(row, list) else [cell_text(row.get(name)) for name in self.columns]
            if not any(map(str.strip, cells)):
                self.blank += 1
                continue
            if any(map(str.strip, cells[width:])):
                raise InvalidInput(
                    f"{self.place(number)} has {len(cells)} cells where the table has {width} columns; put cells "
                    "that contain the separator in quotation marks"
                )
            yield number, cells[:width]

    def index(self, column: str | None) -> int:
        """The index (from 0) of a column, given by its name or its number from 1; None means the only column.

        Raises:
            InvalidInput: there is no such column, or there are several; the message lists the columns.
        """
        if column is None and len(self.columns) == 1:
            return 0
        if column is not None and self.columns.count(column) == 1:
            return self.columns.index(column)
        if column is not None and column.isdecimal() and 1 <= int(column) <= len(self.columns):
            return int(column) - 1
        if column is None:
            raise InvalidInput(
                f"the file is a table with the columns {named(self.columns)}; say which one holds the sentences, for "
                f"example {self.hint}"
            )
        raise InvalidInput(
            f"column: {'several columns are' if column in self.columns else 'no column is'} called {column[:80]!r}; "
            f"the columns are {named(self.columns)}, or their numbers, 1 to {len(self.columns)}"
        )

    def sentences(self, place: int) -> Iterator[tuple[int, str]]:
        """The number of each row and its cell in the column `place`, which may be blank. Raises what `filled` does."""
        for number, cells in self.filled():
            yield number, " ".join(cells[place].split("\n")).strip() if len(cells) > place else ""


def open_table(
    file: BinaryIO,
    kind: Kind | None = None,
    *,
    charset: str | None = None,
    sheet: str | None = None,
    header: bool | None = None,
    column: str | None = None,
    force: bool = False,
) -> Table:
    """Begins to read a file.

    Args:
        kind: the declared kind; None: detected.
        header: whether the first row of CSV or of a sheet names the columns; None: detected.
        column: the name or number of a column that the caller knows; a first row that has this name is a header.
        force: each line of a text is a sentence, even if the lines look like a table or like JSON.

    Raises:
        EmptyInput, UnsupportedMedia, InvalidInput: the file cannot be read; the message says why and what to do.
    """
    head = file.read(BLOCK)
    if not head:
        raise EmptyInput("the file is empty")
    if kind is None:
        kind = "parquet" if head.startswith(b"PAR1") else "xlsx" if head.startswith(b"PK\x03\x04") else None
    if sheet is not None and kind != "xlsx":
        raise InvalidInput("sheet: applies only to Excel workbooks")
    if kind in ("parquet", "xlsx"):
        try:
            return parquet(file) if kind == "parquet" else workbook(file, sheet, header, column)
        except ModuleNotFoundError as error:  # an extra
            raise UnsupportedMedia(
                f"this server cannot read {kind}: install the Python package {error.name}, or save the file as CSV"
            ) from error
    encoding, certain = encoding_of(file, charset)
    lines = numbered(file, encoding)
    facts: dict[str, Any] = {"encoding": encoding, "certain": certain}
    sample = head.decode(encoding, "ignore").removeprefix("\ufeff").split("\n")
    sample = sample[: -1 if len(head) == BLOCK and len(sample) > 1 else None][:LOOKED_AT]  # the last one may be cut off
    if kind == "ndjson" or (kind is None and not force and is_ndjson(sample)):
        return json_table(lines, **facts)
    separator = None
    if kind in ("csv", "tsv") or (kind is None and not force):
        separator = "\t" if kind == "tsv" else separator_of(sample, declared=kind == "csv")
    if separator is None:
        if not force:
            check_prose(sample)
        return table("text", ((number, [line]) for number, line in lines), ["text"], **facts)
    rows = csv_rows(lines, separator, quoted=is_quoted(sample, separator))
    return table("tsv" if separator == "\t" else "csv", rows, None, header, column, separator=separator, **facts)


def table(
    kind: Kind,
    rows: Iterator[Row],
    names: list[str] | None,
    header: bool | None = None,
    column: str | None = None,
    **facts: Any,
) -> Table:
    """A table of these rows. If `names` is None, the columns are named by the header or numbered."""
    leading = 0
    for row in rows:
        if any(map(str.strip, row[1])):
            break
        leading += 1
    else:
        raise EmptyInput("the file holds no text; all its rows are blank")
    first, titles = [row, *itertools.islice(rows, LOOKED_AT - 1)], None
    if names is None:
        width = max(place for _, cells in first for place, cell in enumerate(cells, 1) if cell.strip())
        if header is None:
            header = (column is not None and column in first[0][1] and not column.isdecimal()) or is_header(
                [cells for _, cells in first]
            )
        if header:
            titles = first.pop(0)
        head = titles[1][:width] if titles else [""] * width
        names = [" ".join(cell.split()) or f"column {place}" for place, cell in enumerate(head, 1)]
    if len(names) > MOST_COLUMNS:
        raise InvalidInput(
            f"the table has {len(names):,} columns; the limit is {MOST_COLUMNS:,}; send only the one with the sentences"
        )
    facts["blank"] = leading if kind in ("text", "parquet") else 0  # blank rows above a header are no rows
    return Table(kind, names, itertools.chain(first, rows), [cells for _, cells in first], header=titles, **facts)


def encoding_of(file: BinaryIO, charset: str | None) -> tuple[str, bool]:
    """The encoding of a text, and whether it is certain.

    Raises:
        UnsupportedMedia: the file is not text.
        InvalidInput: `charset` is unknown.
    """
    if charset is not None:
        try:
            io.TextIOWrapper(io.BytesIO(), charset)
            if codecs.lookup(charset).name in NO_CHARSETS:
                raise LookupError
        except (LookupError, ValueError):  # ValueError: the name contains a NUL character
            raise InvalidInput(
                f"charset: {charset[:40]!r} is not known; common are utf-8, utf-16, windows-1252 and windows-1251"
            ) from None
        return charset.lower(), True
    file.seek(0)
    head = file.read(BLOCK)
    if (marked := encoding_of_mark(head)) is not None:
        return marked, True
    if UNUSUAL.search(head):
        name, confidence = guess(head)
        if name not in ("ascii", "utf-8") and confidence > SURE:
            return name, True
    file.seek(0)
    try:
        for _ in codecs.iterdecode(iter(lambda: file.read(BLOCK), b""), "utf-8"):
            pass
    except UnicodeDecodeError:
        begun = (file.tell() - 1) // BLOCK * BLOCK  # of the block that cannot be decoded
        file.seek(max(0, begun - 4))  # a character of the block before may be cut
        name, confidence = guess(file.read(BLOCK))
        return name, confidence > SURE
    return "utf-8", True


def guess(content: bytes) -> tuple[str, float]:
    """chardet's guess at the encoding, and its confidence. Raises UnsupportedMedia if the content is not text."""
    import chardet  # noqa: PLC0415 - takes 0.1 s, and few files need it

    era = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO | chardet.EncodingEra.LEGACY_REGIONAL
    found = chardet.detect(content, max_bytes=BLOCK, encoding_era=era)
    if found["encoding"] is None:
        raise UnsupportedMedia(
            f"the file is not text but {found['mime_type'] or 'application/octet-stream'}; send plain text, CSV, lines "
            "of JSON, .xlsx or Parquet. Copy the text out of a PDF, save an old workbook as .xlsx or CSV, and unpack "
            "an archive first"
        )
    return found["encoding"].lower(), found["confidence"]


def numbered(file: BinaryIO, encoding: str) -> Iterator[tuple[int, str]]:
    """Decoded lines with their numbers. Raises InvalidInput if a line cannot be decoded or is too long."""
    file.seek(0)
    blocks = TextLines("", file, longest=LONGEST_ROW, encoding=encoding).blocks()
    return enumerate(itertools.chain.from_iterable(blocks), 1)


def is_code(cell: str) -> bool:
    """Whether a cell is a number, date or identifier: short, with a digit, and without a space."""
    return bool(CODE.fullmatch(cell.strip()))


def transposed(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """The cells of each column that are not blank."""
    return [[cell.strip() for cell in cells if cell.strip()] for cells in itertools.zip_longest(*rows, fillvalue="")]


def is_ndjson(lines: Sequence[str]) -> bool:
    """Whether all lines of a text are JSON objects or strings."""
    with suppress(orjson.JSONDecodeError):
        return all(isinstance(orjson.loads(line), dict | str) for line in lines if line.strip())
    return False


def is_quoted(lines: Sequence[str], separator: str) -> bool:
    """Whether quotation marks enclose cells. Between tabs, they do so only if a cell needs them: spreadsheets enclose
    cells that contain a tab, a line break or a quotation mark; otherwise quotation marks belong to the text."""
    if separator != "\t":
        return True
    with suppress(csv.Error):
        rows = csv.reader((line + "\n" for line in lines), delimiter="\t", strict=True)
        return any(set(cell) & set('\t\n\r"') for row in rows for cell in row)
    return False


def split(lines: Sequence[str], separator: str) -> list[list[str]]:
    """The rows of these lines that are not blank."""
    rows: list[list[str]] = []
    with suppress(InvalidInput):
        for _, row in csv_rows(enumerate(lines, 1), separator, quoted=is_quoted(lines, separator), strict=False):
            rows += [row] if any(map(str.strip, row)) else []
    return rows


def separator_of(lines: Sequence[str], *, declared: bool) -> str | None:
    """The separator of a table; None if the text is not clearly one.

    It splits most rows into the same number of cells. If the text is not `declared` as a table and the separator also
    occurs in prose, the first row must name the columns, or the first or last column must hold codes.
    """
    best, chosen = 0.0 if declared else MOST, "," if declared else None
    for separator in SEPARATORS:
        rows = split(lines, separator)
        (width, same), *_ = Counter(map(len, rows)).most_common(1) or [(1, 0)]
        share = same / max(len(rows), 1)
        if width > 1 and share > best and (declared or separator in "\t|" or is_clear(rows, width)):
            best, chosen = share, separator
    return chosen


def is_clear(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether rows that were split at a separator of prose are a table: with a header or a column of codes, and without
    a space after most separators."""
    rows = [row for row in rows if len(row) == width]
    tight = sum(not any(cell[:1].isspace() for cell in row[1:]) for row in rows)
    coded = any(sum(is_code(row[place]) for row in rows) >= MOST * len(rows) for place in (0, -1))
    return len(rows) >= MANY and tight >= MOST * len(rows) and (is_header(rows) or (coded and len(rows) >= FEW_ROWS))


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has the names of the columns: short, distinct, and unlike the cells below them."""
    names = "\t".join(cell.strip() for cell in rows[0]).rstrip("\t").split("\t")  # rows may end with separators
    columns = transposed([*rows[1:200], [""] * len(names)])[: len(names)]
    if not names[0] and all(map(is_code, columns[0])):
        names, columns = names[1:], columns[1:]  # pandas and R write row numbers without a name
    if len(rows) < 2 or not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        return False
    if any(len(name) > LONGEST_NAME or is_code(name) or name[-1] in ".?!" for name in names):
        return False
    if any(cells and sum(map(is_code, cells)) >= MOST * len(cells) for cells in columns):
        return True
    lengths = [statistics.median(map(len, cells)) if cells else 0 for cells in columns]
    name, length = max(zip(names, lengths, strict=True), key=lambda both: both[1])
    return 2 * len(name) <= length and len(name.split()) <= 4


def check_prose(lines: Sequence[str]) -> None:
    """Raises InvalidInput, with the remedy, if a text is a table or JSON."""
    if (separator := separator_of(lines, declared=False)) is not None:
        hint = table("csv", enumerate(split(lines, separator), 1), None).hint
        what = f"a table, split at {separator!r}; give format 'csv' and the column with the sentences, perhaps {hint}"
    elif is_ndjson(lines) or re.match(r'\s*\[\s*["{]', "".join(lines[:2])):
        what = "JSON; write one JSON value a line, and give format 'ndjson'"
    else:
        return
    raise InvalidInput(f"the lines look like {what}; if each line is a sentence nevertheless, give force")


def csv_rows(
    lines: Iterable[tuple[int, str]], separator: str, *, quoted: bool = True, strict: bool = True
) -> Iterator[Row]:
    """The rows of a CSV. Raises InvalidInput if a cell in quotation marks is never closed, or has text behind it."""
    csv.field_size_limit(LONGEST_ROW)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=separator, quoting=quoting, strict=strict)
    begun = 1
    try:
        for cells in reader:
            yield begun, cells
            begun = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInput(
            f"line {begun}: a cell cannot be read ({error}); is a quotation mark opened there and never closed? "
            'Double it (""), or write the file with a CSV writer'
        ) from None


def json_lines(lines: Iterable[tuple[int, str]]) -> Iterator[JsonRow]:
    """The objects in the lines that are not blank; a string stands for {"text": string}. Raises InvalidInput if a line
    holds neither."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            one = 'each line is one value, such as "a sentence"'
            raise InvalidInput(f"line {number} is not JSON: {error}; {one}") from None
        if not isinstance(value, str | dict):
            raise InvalidInput(f'line {number}: expected "a sentence" or an object such as {{"text": "a sentence"}}')
        yield number, {"text": value} if isinstance(value, str) else value


def json_table(lines: Iterable[tuple[int, str]], **facts: Any) -> Table:
    """Lines of JSON as a table. The keys of the objects are the columns."""
    rows = json_lines(lines)
    first = list(itertools.islice(rows, LOOKED_AT))
    names = list(dict.fromkeys(name for _, value in first for name in value)) or ["text"]
    cells = ((number, [cell_text(value.get(name)) for name in names]) for number, value in first)
    one = table("ndjson", cells, names, **facts)
    one.rows = itertools.chain(first, rows)
    return one


def cell_text(value: Any) -> str:
    """A value as text; a whole number without decimals."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


@contextmanager
def refusing(what: str, kind: type[Exception]) -> Iterator[None]:
    """Raises InvalidInput for a library's errors, and for values that it cannot convert, such as a date."""
    try:
        yield
    except (kind, OSError, ValueError, OverflowError) as error:
        raise InvalidInput(f"the {what} cannot be read ({str(error)[:200]}); save it again, or as CSV") from None


def parquet(file: BinaryIO) -> Table:
    """The columns of a Parquet file, without those of lists, structures or bytes."""
    import pyarrow.parquet  # noqa: PLC0415 - an extra

    def cells() -> Iterator[list[str]]:
        with refusing("Parquet file", pyarrow.ArrowException):
            for batch in content.iter_batches(LOOKED_AT, columns=names, use_threads=False):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    yield [cell_text(cell) for cell in row]

    with refusing("Parquet file", pyarrow.ArrowException):
        content = pyarrow.parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
    fields = [one for one in content.schema_arrow if not pyarrow.types.is_nested(one.type)]
    names = [one.name for one in fields if "binary" not in str(one.type)]
    if not names:
        raise InvalidInput("the Parquet file has only columns of lists, structures or bytes; convert one to text")
    return table("parquet", enumerate(cells(), 1), names)


def workbook(file: BinaryIO, sheet: str | None, header: bool | None, column: str | None) -> Table:
    """The sheet `sheet`; by default the longest. A cell with a formula has the value that was saved with it."""
    from python_calamine import CalamineError, CalamineWorkbook  # noqa: PLC0415 - an extra

    file.seek(0)
    with refusing("workbook", CalamineError):
        book = CalamineWorkbook.from_filelike(file)
        sheets = list(book.sheet_names)
        if sheet is not None and sheet not in sheets:
            raise InvalidInput(f"sheet: there is no {sheet[:80]!r}; the sheets are {named(sheets)}")
        wanted = sheets if sheet is None else [sheet]
        longest = max((book.get_sheet_by_name(name) for name in wanted), key=lambda one: one.height)
    rows = ((number, [cell_text(cell) for cell in cells]) for number, cells in enumerate(longest.iter_rows(), 1))
    return table("xlsx", rows, None, header, column, sheets=sheets, sheet=longest.name)


TYPES: dict[str, Kind] = {
    "text/plain": "text", "text/csv": "csv", "application/csv": "csv", "text/tab-separated-values": "tsv",
    "application/x-ndjson": "ndjson", "application/vnd.apache.parquet": "parquet",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}  # fmt: skip
ENDINGS: dict[str, Kind] = {
    "txt": "text", "text": "text", "csv": "csv", "tsv": "tsv", "tab": "tsv", "ndjson": "ndjson", "jsonl": "ndjson",
    "parquet": "parquet", "pq": "parquet", "xlsx": "xlsx", "xlsm": "xlsx",
}  # fmt: skip


def kind_of_name(name: str) -> Kind | None:
    """The kind of a file according to the ending of its name; None if the ending is unknown."""
    return ENDINGS.get(name.rpartition(".")[2].lower())
