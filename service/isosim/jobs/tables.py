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
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, get_args

import orjson

from isosim.errors import EmptyInput, InvalidInput, UnsupportedMedia
from isosim.jobs.text_lines import encoding_of_mark
from isosim.wording import named, nearest

Kind = Literal["text", "csv", "tsv", "ndjson", "parquet", "xlsx"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# (number, cells). In a text file, `number` is the line in which the row begins, counted from 1. In a workbook or a
# Parquet file, `number` is the row, counted from 1.
Row = tuple[int, list[str]]

BLOCK = 1 << 18  # bytes read at once, and at the beginning of a file from which its form is detected
LOOKED_AT = 1000  # maximum rows from which header, separator and columns are detected
LONGEST_ROW = 1 << 20  # maximum characters of a line, or of a cell of CSV
MOST_COLUMNS = 1000
LONGEST_NAME = 64  # maximum characters of a column's name
FEW_ROWS = 20  # fewer lines may look alike by chance; a sheet with fewer rows is a cover if another sheet has more
MANY = 5  # minimum rows of a table whose separator also occurs in prose
MOST = 0.8  # share of lines that must look alike
SURE = 0.9  # chardet is this confident of escape sequences and of UTF-16, and far less of guesses from letters
SEPARATORS = {"\t": "tabs", "|": "bars", ";": "semicolons", ",": "commas"}
CERTAIN = ("\t", "|")  # separators that do not occur in prose
UNUSUAL = re.compile(rb"\A%PDF|[\0-\x08\x0e-\x1f]|~\{")  # in UTF-16, in ISO-2022, in HZ and in files that are not text
# Encodings of Python's own, of names of domains and of old mail. Their text may hold half of a surrogate pair, or take
# minutes to decode.
NO_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7"}
STATED = re.compile(r"sep=([\t;,|])\r?\n")  # first line of some CSV files, which tells Excel the separator
CODE = re.compile(r"(?=.*[0-9])[!-~]{1,40}|[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4} [0-9:]{4,}[!-~ ]{0,20}")
TAG = re.compile(r"\s*<[!/?]?[A-Za-z][^<>]*>")
JSON = re.compile(r'\s*(?:[\[{}\]],?|\{.*\},?|"(?:[^"\\]|\\.)*"(?:\s*:.*|,?))\s*')  # a line of JSON
WANTED = "send plain text, CSV, lines of JSON, .xlsx or Parquet"


@dataclass(frozen=True)
class Words:
    """How a front end names what a person can do about a file. `column` has a place for a column's name or number."""

    column: str = "the column {}"
    charset: str = "the option charset"
    sheet: str = "by name"
    csv: str = "declare it as CSV"
    ndjson: str = "write one JSON value a line"
    force: str = "say so"


NEUTRAL = Words()


@dataclass
class Table:
    """A file's rows. `rows` begin after the header and can be read once."""

    kind: Kind
    columns: list[str]
    rows: Iterator[Row]
    first: list[Row]  # the first of `rows`, which still yields them
    words: Words = NEUTRAL
    encoding: str | None = None  # None for binary files
    certain: bool = True  # False if the encoding is a guess
    separator: str | None = None
    header: Row | None = None
    sheets: list[str] = field(default_factory=list)
    sheet: str | None = None
    blank: int = 0  # number of blank rows so far
    values: Iterator[tuple[int, Any]] | None = None  # of lines of JSON: each line's number and value; instead of `rows`

    @property
    def suggested(self) -> int:
        """Index of the column that probably holds the sentences: the longest text, leaving out columns of codes."""
        cells = [[cell for cell in column if not is_code(cell)] for column in columns_of(self.first, len(self.columns))]
        return max(range(len(cells)), key=lambda place: sum(map(len, cells[place])))

    @property
    def hint(self) -> str:
        """The words for choosing the suggested column, by its name or, if it has none, by its number."""
        unnamed = self.header is None and self.kind not in ("ndjson", "parquet")
        return self.words.column.format(str(self.suggested + 1) if unnamed else self.columns[self.suggested][:80])

    def place(self, number: int) -> str:
        return f"{'row' if self.encoding is None else 'line'} {number}"

    def filled(self) -> Iterator[Row]:
        """The rows that are not blank, with at most as many cells as there are columns.

        Raises:
            InvalidInput: a row cannot be read or has too many cells; the message names the row.
        """
        width = len(self.columns)
        for number, cells in self.rows:
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
        if column is None and len(self.columns) > 1:
            raise InvalidInput(
                f"the file is a table with the columns {named(self.columns)}; say which one holds the sentences, for "
                f"example {self.hint}"
            )
        if column is None or self.columns.count(column) == 1:
            return 0 if column is None else self.columns.index(column)
        if column in self.columns:
            raise InvalidInput(f"column: several columns are called {column[:80]!r}; give its number (from 1)")
        if column.isdecimal() and 1 <= int(column) <= len(self.columns):
            return int(column) - 1
        near = nearest(column, self.columns)
        raise InvalidInput(
            f"column: there is no {column[:80]!r}; the columns are {named(self.columns)}, or their numbers, 1 to "
            f"{len(self.columns)}" + (f". Did you mean {near}?" if near else "")
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
    force: bool = False,
    words: Words = NEUTRAL,
) -> Table:
    """Begins to read a file.

    Args:
        kind: the declared kind; None: detected.
        header: whether the first row of CSV or of a sheet names the columns; None: detected.
        force: each line of a text is a sentence, even if the lines look like a table or like JSON.

    Raises:
        EmptyInput, UnsupportedMedia, InvalidInput: the file cannot be read; the message says why and what to do.
    """
    begin = file.read(4)
    if not begin:
        raise EmptyInput("the file is empty")
    if kind is None:
        kind = "parquet" if begin == b"PAR1" else "xlsx" if begin == b"PK\x03\x04" else None
    if sheet is not None and kind != "xlsx":
        raise InvalidInput("sheet: applies only to Excel workbooks")
    if kind == "parquet":
        return parquet(file, words)
    if kind == "xlsx":
        return workbook(file, sheet, header, words)
    encoding, certain = encoding_of(file, charset)
    facts: dict[str, Any] = {"encoding": encoding, "certain": certain, "words": words}
    lines = numbered(file, encoding, "\n", words)
    sample = "".join(line for _, line in itertools.islice(lines, LOOKED_AT))[:BLOCK]
    if kind == "ndjson" or (kind is None and is_ndjson(sample)):
        return json_table(numbered(file, encoding, "\n", words), **facts)
    separator, stated = None, STATED.match(sample)
    if kind in ("csv", "tsv") or (kind is None and not force):
        separator = stated[1] if stated else "\t" if kind == "tsv" else separator_of(sample, declared=kind == "csv")
    if separator is None:
        if not force:
            check_prose(sample, words, declared=kind == "text")
        lines = numbered(file, encoding, "\n", words)
        return table("text", ((number, [line.rstrip("\r\n")]) for number, line in lines), ["text"], **facts)
    rows = csv_rows(numbered(file, encoding, "", words), separator, quoted=is_quoted(sample, separator))
    rows = itertools.islice(rows, 1 if stated else 0, None)
    return table("tsv" if separator == "\t" else "csv", rows, None, header, separator=separator, **facts)


def table(kind: Kind, rows: Iterator[Row], names: list[str] | None, header: bool | None = None, **facts: Any) -> Table:
    """A table of these rows. If `names` is None, the columns are named by the header or numbered."""
    rows = itertools.dropwhile(lambda row: not any(map(str.strip, row[1])), rows)
    first, titles = list(itertools.islice(rows, LOOKED_AT)), None
    if not first:
        raise EmptyInput("the file holds no text; all its rows are blank")
    if names is None:
        header = is_header([cells for _, cells in first]) if header is None else header
        titles = first.pop(0) if header else None
        filled = [max((n for n, cell in enumerate(cells, 1) if cell.strip()), default=0) for _, cells in first]
        width = max(filled, default=0)
        cells = [] if titles is None else [" ".join(cell.split()) for cell in titles[1]]
        while len(cells) > width and not cells[-1]:
            cells.pop()
        cells += [""] * (width - len(cells) if titles is None else 0)
        names = [name or f"column {place}" for place, name in enumerate(cells, 1)]
    if len(names) > MOST_COLUMNS:
        raise InvalidInput(
            f"the table has {len(names):,} columns; the limit is {MOST_COLUMNS:,}; send only the one with the sentences"
        )
    return Table(kind, names, itertools.chain(first, rows), first, header=titles, **facts)


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
    place = undecodable(file)
    if place is None:
        return "utf-8", True
    file.seek(place)
    name, confidence = guess(file.read(BLOCK))
    return name, confidence > SURE


def guess(content: bytes) -> tuple[str, float]:
    """chardet's guess at the encoding, and its confidence. Raises UnsupportedMedia if the content is not text."""
    import chardet  # noqa: PLC0415 - takes 0.1 s, and few files need it

    era = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO | chardet.EncodingEra.LEGACY_REGIONAL
    found = chardet.detect(content, max_bytes=BLOCK, encoding_era=era)
    if found["encoding"] is None:
        what = found["mime_type"] or "application/octet-stream"
        raise UnsupportedMedia(
            f"the file is not text but {what}; {WANTED}. Copy the text out of a PDF, save an old workbook as .xlsx or "
            "CSV, and unpack an archive first"
        )
    return found["encoding"].lower(), found["confidence"]


def undecodable(file: BinaryIO) -> int | None:
    """The place (bytes) of a block that is not UTF-8; None if the whole file is."""
    decoder, place = codecs.getincrementaldecoder("utf-8")(), 0
    file.seek(0)
    with suppress(UnicodeDecodeError):
        while block := file.read(BLOCK):
            decoder.decode(block)
            place += len(block)
        decoder.decode(b"", final=True)
        return None
    return max(0, place - 4)  # a character of the block before may be cut


def numbered(file: BinaryIO, encoding: str, newline: str, words: Words) -> Iterator[tuple[int, str]]:
    """Decoded lines with their numbers. Raises InvalidInput if a line cannot be decoded or is too long."""
    number = 0
    try:
        for number, line in enumerate(pieces(file, encoding, newline), 1):
            if len(line) > LONGEST_ROW:
                raise InvalidInput(
                    f"line {number} is longer than {LONGEST_ROW:,} characters; each sentence, or each row of a table, "
                    "must have a line of its own"
                )
            yield number, line
    except UnicodeError as error:
        before = error.object[: error.start].count(b"\n") if isinstance(error, UnicodeDecodeError) else 0
        raise InvalidInput(
            f"line {number + before + 1} is not {encoding}; name the file's encoding with {words.charset}, or save it "
            "as UTF-8"
        ) from None


def pieces(file: BinaryIO, encoding: str, newline: str = "\n") -> Iterator[str]:
    """Decoded lines, or the first LONGEST_ROW + 1 characters of a longer one."""
    file.seek(0)
    text = io.TextIOWrapper(file, "utf-8-sig" if encoding == "utf-8" else encoding, newline=newline)
    try:
        yield text.readline(LONGEST_ROW + 1).removeprefix("\ufeff")
        while line := text.readline(LONGEST_ROW + 1):
            yield line
    finally:
        text.detach()  # keeps the file open; the caller closes it


def is_code(cell: str) -> bool:
    """Whether a cell is a number, date or identifier: short, with a digit, and without a space."""
    return bool(CODE.fullmatch(cell.strip()))


def columns_of(rows: Iterable[Row], count: int) -> list[list[str]]:
    """The cells of each column that are not blank."""
    return [[cells[n].strip() for _, cells in rows if len(cells) > n and cells[n].strip()] for n in range(count)]


def is_ndjson(sample: str) -> bool:
    """Whether all lines of a text are JSON objects or strings."""
    lines = [line for line in sample.split("\n") if line.strip()]
    lines = lines[:-1] or lines  # the last line may be cut off
    if not lines or lines[0].lstrip()[:1] not in ("{", '"'):
        return False
    try:
        return all(isinstance(json.loads(line), dict | str) for line in lines)
    except (ValueError, RecursionError):
        return False


def is_quoted(sample: str, separator: str) -> bool:
    """Whether quotation marks enclose cells. Between tabs, they do so only if a cell needs them: spreadsheets enclose
    cells that contain a tab, a line break or a quotation mark; otherwise quotation marks belong to the text."""
    if separator != "\t" or '"' not in sample:
        return True
    try:
        rows = list(csv.reader(io.StringIO(sample.rpartition("\n")[0], newline=""), delimiter="\t", strict=True))
    except csv.Error:
        return False
    return any(set(cell) & set('\t\n\r"') for row in rows for cell in row)


def split(sample: str, separator: str) -> list[list[str]]:
    """The first rows of a text that are not blank, without the last one, which may be cut off."""
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if is_quoted(sample, separator) else csv.QUOTE_NONE
    rows: list[list[str]] = []
    with suppress(csv.Error):
        for row in csv.reader(io.StringIO(sample, newline=""), delimiter=separator, quoting=quoting):
            rows += [row] if any(map(str.strip, row)) else []
    return rows[:-1] if len(sample) == BLOCK else rows


def separator_of(sample: str, *, declared: bool) -> str | None:
    """The separator of a table; None if the text is not clearly one.

    It splits most rows into the same number of cells. If the text is not `declared` as a table and the separator also
    occurs in prose, the first row must name the columns, or the first or last column must hold codes.
    """
    best, chosen = 0.0 if declared else MOST, "," if declared else None
    for separator in SEPARATORS:
        rows = split(sample, separator) if separator in sample else []
        (width, same), *_ = Counter(map(len, rows)).most_common(1) or [(1, 0)]
        share = same / max(len(rows), 1)
        if width < 2 or share < best or (share == best and chosen is not None and not declared):
            continue
        if declared or separator in CERTAIN or (len(rows) >= MANY and is_clear(rows, width)):
            best, chosen = share + 1e-9, separator
    return chosen


def is_clear(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether rows that were split at a separator of prose are a table: with a header or a column of codes, and without
    a space after most separators."""
    rows = [row for row in rows if len(row) == width]
    tight = sum(not any(cell[:1].isspace() for cell in row[1:]) for row in rows)
    coded = any(sum(is_code(row[place]) for row in rows) >= MOST * len(rows) for place in (0, -1))
    return tight >= MOST * len(rows) and (is_header(rows) or (coded and len(rows) >= FEW_ROWS))


def is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row has the names of the columns: short, distinct, and unlike the cells below them."""
    names, rest = [cell.strip() for cell in rows[0]], [(0, list(row)) for row in rows[1:200]]
    while names and not names[-1]:
        names.pop()  # the rows end with separators
    columns = columns_of(rest, len(names))
    if names and not names[0] and all(map(is_code, columns[0])):
        names, columns = names[1:], columns[1:]  # pandas and R write row numbers without a name
    if not rest or not names or not all(names) or len({name.casefold() for name in names}) < len(names):
        return False
    if any(len(name) > LONGEST_NAME or is_code(name) or name[-1] in ".?!" for name in names):
        return False
    if any(cells and sum(map(is_code, cells)) >= MOST * len(cells) for cells in columns):
        return True
    lengths = [statistics.median(map(len, cells)) if cells else 0 for cells in columns]
    name, length = max(zip(names, lengths, strict=True), key=lambda both: both[1])
    return 2 * len(name) <= length and len(name.split()) <= 4


def check_prose(sample: str, words: Words, *, declared: bool) -> None:
    """Raises InvalidInput, with the remedy, if a text is a table, markup or JSON. `declared`: as text."""
    lines = [line for line in sample.splitlines() if line.strip()]
    nevertheless = f"if each line is a sentence nevertheless, {words.force}"
    separator = separator_of(sample, declared=False) if declared else None
    if separator is not None:
        rows = csv_rows(enumerate(sample.splitlines(keepends=True), 1), separator, strict=False)
        raise InvalidInput(
            f"the lines look like a table, split at {SEPARATORS[separator]}; {words.csv}, and name the column with the "
            f"sentences, perhaps {table('csv', rows, None, words=words).hint}; {nevertheless}"
        )
    if re.match(r'\s*\[\s*["{]', sample) or sum(map(bool, map(JSON.fullmatch, lines))) > max(
        FEW_ROWS, MOST * len(lines)
    ):
        raise InvalidInput(f"the text looks like JSON; {words.ndjson}; {nevertheless}")
    if sum(map(bool, map(TAG.match, lines))) > max(FEW_ROWS, len(lines) / 2):
        raise InvalidInput(
            "most lines begin with a tag, as in HTML or XML; send the text without tags, one sentence a line; "
            f"{nevertheless}"
        )


def csv_rows(
    lines: Iterable[tuple[int, str]], separator: str, *, quoted: bool = True, strict: bool = True
) -> Iterator[Row]:
    """The rows of a CSV. Raises InvalidInput if a cell in quotation marks is never closed, or has text behind it."""
    csv.field_size_limit(LONGEST_ROW)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader((line for _, line in lines), delimiter=separator, quoting=quoting, strict=strict)
    while True:
        begun = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise InvalidInput(
                f"line {begun}: a cell cannot be read ({error}); is a quotation mark opened there and never closed? "
                'Double it (""), or write the file with a CSV writer'
            ) from None
        if cells is None:
            return
        yield begun, cells


def json_lines(lines: Iterable[tuple[int, str]], words: Words) -> Iterator[tuple[int, Any]]:
    """The values of the lines that are not blank. Raises InvalidInput if a line is no string and no object in JSON."""
    for number, line in lines:
        try:
            value = orjson.loads(line) if line.strip() else None
        except orjson.JSONDecodeError as error:
            hint = "; JSON has no NaN and no Infinity" if "NaN" in line or "Infinity" in line else ""
            one = f'each line is one value, such as "a sentence"{hint}'
            raise InvalidInput(f"line {number} is not JSON: {error}; {one}") from None
        if isinstance(value, list):
            raise InvalidInput(f"line {number} is a JSON list; {words.ndjson}")
        if isinstance(value, str | dict):
            yield number, value
        elif line.strip():
            raise InvalidInput(f'line {number}: expected "a sentence" or an object such as {{"text": "a sentence"}}')


def json_table(lines: Iterable[tuple[int, str]], words: Words, **facts: Any) -> Table:
    """Lines of JSON as a table. The keys of the objects are the columns; a string stands for {"text": string}."""
    values = json_lines(lines, words)
    first = list(itertools.islice(values, LOOKED_AT))
    values = itertools.chain(first, values)
    objects = [{"text": value} if isinstance(value, str) else value for _, value in first]
    names = list(dict.fromkeys(name for value in objects for name in value)) or ["text"]

    def cells(value: Any) -> list[str]:
        value = {"text": value} if isinstance(value, str) else value
        return [cell_text(value.get(name)) for name in names]

    one = table("ndjson", ((number, cells(value)) for number, value in first), names, words=words, **facts)
    one.rows, one.values = ((number, cells(value)) for number, value in values), values
    return one


def cell_text(value: Any) -> str:
    """A value as text; a whole number without decimals."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def parquet(file: BinaryIO, words: Words) -> Table:
    """The columns of a Parquet file. Cells of lists, structures and bytes are empty."""
    try:
        import pyarrow.parquet  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UnsupportedMedia(
            "this server cannot read Parquet: install pyarrow (pip install 'isosim[ray]'), or save the file as CSV"
        ) from error
    number = 0

    def rows() -> Iterator[Row]:
        nonlocal number
        try:
            for batch in content.iter_batches(LOOKED_AT, columns=readable, use_threads=False):
                read = dict(zip(readable, batch.columns, strict=True))
                columns = [read[name].to_pylist() if name in read else [None] * len(batch) for name in names]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield number, [cell_text(cell) for cell in cells]
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # such as a date out of range
            raise InvalidInput(f"the Parquet file cannot be read after row {number}: {str(error)[:200]}") from None

    try:
        content = pyarrow.parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"the Parquet file cannot be read: {str(error)[:200]}") from None
    fields = list(content.schema_arrow)
    names = [one.name for one in fields]
    readable = [one.name for one in fields if not pyarrow.types.is_nested(one.type) and "binary" not in str(one.type)]
    if not readable:
        raise InvalidInput("the Parquet file has only columns of lists, structures or bytes; convert one to text")
    return table("parquet", rows(), names, words=words)


def workbook(file: BinaryIO, sheet: str | None, header: bool | None, words: Words) -> Table:
    """The sheet `sheet`; by default the first with at least FEW_ROWS rows, else the longest. A cell with a formula has
    the value that was saved with it."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook, PasswordError  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UnsupportedMedia(
            "this server cannot read Excel workbooks: install python-calamine (pip install 'isosim[xlsx]'), or save "
            "the sheet as CSV"
        ) from error
    file.seek(0)
    try:
        book = CalamineWorkbook.from_filelike(file)
        sheets = list(book.sheet_names)
        if sheet is not None and sheet not in sheets:
            raise InvalidInput(f"sheet: there is no {sheet[:80]!r}; the sheets are {named(sheets)}")
        longest: Any = None
        for name in sheets if sheet is None else [sheet]:
            content = book.get_sheet_by_name(name)
            longest = content if longest is None or content.height > longest.height else longest
            if content.height >= FEW_ROWS:
                break
    except PasswordError:
        raise InvalidInput("the workbook is protected by a password; save it without one") from None
    except (CalamineError, OSError, ValueError) as error:
        raise InvalidInput(f"the workbook cannot be read ({str(error)[:200]}); save it again, or as CSV") from None
    rows = ((number, [cell_text(cell) for cell in cells]) for number, cells in enumerate(longest.iter_rows(), 1))
    return table("xlsx", rows, None, header, sheets=sheets, sheet=longest.name, words=words)


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
