"""Reads the rows of a file of any known format, and the sentences of one column.

>>> import io
>>> file = io.BytesIO(b"id;question\\n1;How do I log in?\\n2;Where is my invoice?\\n")
>>> table = open_table(file, Hints(declared="csv"))
>>> table.columns, table.suggested
(['id', 'question'], 1)
>>> [text for _, text in table.sentences(table.index("question"))]
['How do I log in?', 'Where is my invoice?']
"""

import csv
import io
import itertools
import json
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, Literal

from isosim.errors import EmptyInput, InvalidInput, UnsupportedMedia
from isosim.jobs.table import is_code
from isosim.jobs.tables.detection import (
    LONGEST_ROW,
    LOOKED_AT,
    MOST_COLUMNS,
    SEPARATOR_LINE,
    FileForm,
    Hints,
    detect,
    is_header,
)
from isosim.jobs.tables.workbooks import sheet_rows
from isosim.wording import named, nearest

# (number, cells). In a text file, `number` is the line in which the row begins, counted from 1. In a workbook or a
# Parquet file, `number` is the row, counted from 1.
Row = tuple[int, list[str]]
OPEN = "unexpected end of data"  # the csv module's message if a quoted cell is not closed at the end of the file
WITHOUT_PYARROW = (
    "this server cannot read Parquet: install pyarrow (pip install 'isosim[ray]'), or save the file as CSV"
)


@dataclass
class Table:
    """A table in a file whose format was detected. `rows` begin after the header."""

    form: FileForm
    columns: list[str]
    header: bool
    suggested: int  # index (from 0) of the column that seems to contain the sentences
    sheets: list[str] = field(default_factory=list)
    sheet: str | None = None
    blank: int = 0  # number of blank rows found so far
    no_text: dict[int, str] = field(default_factory=dict)  # columns without text: index -> what they contain
    _rows: Iterator[Row] = field(default_factory=lambda: iter(()))
    _first: Row | None = None  # the header; None if the file has none

    def rows(self) -> Iterator[Row]:
        """Yields the rows below the header that are not blank. They can be read only once.

        Raises:
            InvalidInput: a row cannot be read, or has more cells than there are columns; the message names the row.
        """
        width = len(self.columns)
        for number, cells in self._rows:
            while len(cells) > width and not cells[-1].strip():
                cells.pop()
            if len(cells) > width:
                raise InvalidInput(
                    f"{self.place(number)} has {len(cells)} cells where the table has {width} columns; put cells "
                    "that contain the separator in quotation marks"
                )
            if not "".join(cells).strip():
                self.blank += 1
                continue
            yield number, cells

    def every_row(self) -> Iterator[Row]:
        """The header, if there is one, and then the rows that are not blank."""
        rows = (
            self.rows() if self.form.format != "ndjson" else ((number, self.full(row)) for number, row in self.rows())
        )
        return itertools.chain([] if self._first is None else [self._first], rows)

    def full(self, cells: list[str]) -> list[str]:
        """The cells of a row of NDJSON. Adds empty cells at the end, so that each column has a cell."""
        return cells + [""] * (len(self.columns) - len(cells))

    def preview(self, count: int) -> list[Row]:
        """The next rows, without consuming them: `rows` still yields them."""
        first = list(itertools.islice(self._rows, count))
        self._rows = itertools.chain(first, self._rows)
        return first if self.form.format != "ndjson" else [(number, self.full(cells)) for number, cells in first]

    def place(self, number: int) -> str:
        return f"{'row' if self.form.format in ('xlsx', 'parquet') else 'line'} {number}"

    def index(self, column: str | None) -> int:
        """The index (from 0) of a column, given by its name or its number from 1; None means the only column.

        Raises:
            InvalidInput: there is no such column, it does not contain text, or no column was named and there are
                several; the message lists the columns.
        """
        place = self._index(column)
        if place in self.no_text:
            better = f"try column={self.hint}" if self.suggested not in self.no_text else "convert it to text"
            raise InvalidInput(f"column: {self.columns[place][:80]!r} holds {self.no_text[place]}, no text; {better}")
        return place

    @property
    def hint(self) -> str:
        """Value of the parameter `column` for the suggested column: its name, or its number if it has no name."""
        named = self.header or self.form.format in ("ndjson", "parquet")
        return self.columns[self.suggested] if named else str(self.suggested + 1)

    def _index(self, column: str | None) -> int:
        if column is None:
            if len(self.columns) == 1:
                return 0
            raise InvalidInput(
                f"the file is a table with the columns {named(self.columns)}; say which one holds the sentences, for "
                f"example column={self.hint}"
            )
        same = [place for place, name in enumerate(self.columns) if name == column]
        if len(same) == 1:
            return same[0]
        if same:
            raise InvalidInput(f"column: {len(same)} columns are called {column[:80]!r}; give its number (from 1)")
        if column.isdecimal() and 1 <= int(column) <= len(self.columns):
            return int(column) - 1
        others = [name for name in self.sheets if name != self.sheet]
        elsewhere = f". This is sheet {self.sheet!r}; other sheets (sheet=NAME) are {named(others)}" if others else ""
        near = nearest(column, self.columns)
        meant = f" Did you mean {near}?" if near is not None else ""
        numbers = f", or their numbers, 1 to {len(self.columns)}"
        raise InvalidInput(
            f"column: there is no {column[:80]!r}; the columns are {named(self.columns)}{numbers}{elsewhere}.{meant}"
        )

    def sentences(self, place: int) -> Iterator[tuple[int, str]]:
        """Yields the number of each row, and its cell in the column `place`, which may be blank. Raises the errors of
        `rows`."""
        for number, cells in self.rows():
            cell = cells[place] if len(cells) > place else ""
            yield number, " ".join(cell.split()) if "\n" in cell else cell.strip()


def open_table(file: BinaryIO, hints: Hints | None = None) -> Table:
    """Detects the format of a file and begins to read it.

    Raises:
        UnsupportedMedia, InvalidInput, EmptyInput: the file cannot be read; the message says why and what to do.
    """
    hints = hints or Hints()
    form = detect(file, hints)
    if hints.sheet is not None and form.format != "xlsx":
        raise InvalidInput(f"sheet: applies only to Excel workbooks; this file is {form.format}")
    no_text: dict[int, str] = {}
    names, rows, sheets, sheet = rows_of(file, form, hints.sheet, no_text)
    looked_at, blank = filled(rows)
    if not looked_at:
        raise EmptyInput("the file holds no text" if sheet is None else f"the sheet {sheet!r} is empty")
    first = None
    if names is None:
        header = is_header([cells for _, cells in looked_at]) if hints.header is None else hints.header
        first = looked_at.pop(0) if header else None
        names = column_names(first, looked_at)
    elif hints.header is not None:
        csv_all_the_same = "; if it is a CSV with one column, add format=csv" * (form.format == "text")
        raise InvalidInput(
            f"header: applies only to CSV, TSV and Excel workbooks; this file is {form.format}{csv_all_the_same}"
        )
    check_columns(len(names))
    suggested = likeliest(names, looked_at, no_text)
    every = itertools.chain(looked_at, rows)
    return Table(form, names, first is not None, suggested, sheets, sheet, blank, no_text, every, first)


def check_columns(count: int) -> None:
    if count > MOST_COLUMNS:
        raise InvalidInput(
            f"the table has {count:,} columns; the limit is {MOST_COLUMNS:,}; send only the column with the sentences"
        )


def rows_of(
    file: BinaryIO, form: FileForm, sheet: str | None, no_text: dict[int, str]
) -> tuple[list[str] | None, Iterator[Row], list[str], str | None]:
    """Column names (None for CSV, TSV and workbooks), rows, names of the workbook's sheets, and name of the sheet that
    is read.

    Parquet columns with lists, structures or bytes are added to `no_text`.
    """
    match form.format:
        case "text":
            return ["text"], text_rows(file, form), [], None
        case "ndjson":
            return *json_rows(file, form), [], None
        case "parquet":
            return *parquet_rows(file, no_text), [], None
        case "xlsx":
            sheets, chosen, found = sheet_rows(file, sheet)
            return None, ((number, [cell_text(cell) for cell in cells]) for number, cells in found), sheets, chosen
    return None, csv_rows(file, form), [], None


def filled(rows: Iterator[Row]) -> tuple[list[Row], int]:
    """The first rows (at most LOOKED_AT) that are not blank, and the number of blank rows that were skipped."""
    found: list[Row] = []
    blank = 0
    while len(found) < LOOKED_AT and (row := next(rows, None)) is not None:
        if any(cell.strip() for cell in row[1]):
            found.append(row)
        else:
            blank += 1
    return found, blank


def column_names(header: Row | None, rows: list[Row]) -> list[str]:
    """Names of the columns. A column without a name is called `column 3`, for example. Empty columns without a name are
    left out at the end."""
    width = max((len(cells) for _, cells in rows), default=0)
    if header is None:
        return [f"column {place + 1}" for place in range(width)]
    names = [" ".join(cell.split()) for cell in header[1]]
    filled = max((place + 1 for _, cells in rows for place, cell in enumerate(cells) if cell.strip()), default=0)
    while names and not names[-1] and len(names) > filled:
        names.pop()
    return [name or f"column {place + 1}" for place, name in enumerate(names)]


def likeliest(names: list[str], rows: list[Row], no_text: Container[int] = ()) -> int:
    """Index of the column that probably contains the sentences: it has the most text, not counting identifiers."""

    def length(place: int) -> int:
        cells = [cells[place].strip() for _, cells in rows if len(cells) > place]
        return sum(len(cell) for cell in cells if not is_code(cell))

    return max(range(len(names)), key=lambda place: -1 if place in no_text else length(place))


def lines_of(file: BinaryIO, form: FileForm, newline: str) -> Iterator[tuple[int, str]]:
    """Decoded lines with their numbers. Raises InvalidInput if a line is too long."""
    encoding = "utf-8-sig" if form.encoding == "utf-8" else str(form.encoding)
    file.seek(0)
    text = io.TextIOWrapper(file, encoding, newline=newline)
    try:
        number = 0
        while line := text.readline(LONGEST_ROW + 1):
            number += 1
            if len(line) > LONGEST_ROW:
                raise InvalidInput(
                    f"line {number} is longer than {LONGEST_ROW:,} characters; each sentence, or each row of a table, "
                    "must have a line of its own"
                )
            yield number, line.removeprefix("\ufeff") if number == 1 else line
    finally:
        text.detach()  # keeps the file open; the caller closes it


def text_rows(file: BinaryIO, form: FileForm) -> Iterator[Row]:
    return ((number, [line.rstrip("\r\n")]) for number, line in lines_of(file, form, "\n"))


def csv_rows(file: BinaryIO, form: FileForm) -> Iterator[Row]:
    """The rows of a CSV or TSV file.

    If a row has a single line, misplaced quotation marks are read as text. In a row of several lines, they are an
    error, because all lines between two misplaced quotation marks would become one cell.

    Raises:
        InvalidInput: a cell of several lines is too long, is never closed, or has text after its closing quotation
            mark.
    """
    csv.field_size_limit(LONGEST_ROW)
    line = ""

    def lines() -> Iterator[str]:
        nonlocal line
        for _, line in lines_of(file, form, ""):
            yield line

    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    parser = partial(csv.reader, delimiter=form.separator or ",", quoting=quoting)
    reader = parser(lines(), strict=True)
    while True:
        begun = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if reader.line_num > begun or OPEN in str(error):
                raise InvalidInput(
                    f"line {begun}: a cell cannot be read ({error}); is a quotation mark opened there and never "
                    'closed? Double it (""), or write the file with a CSV writer'
                ) from None
            cells = next(parser([line]))
        if cells is None:
            return
        if begun > 1 or not SEPARATOR_LINE.fullmatch(line):
            yield begun, cells


def json_rows(file: BinaryIO, form: FileForm) -> tuple[list[str], Iterator[Row]]:
    """Column names and rows of NDJSON: strings, or objects whose keys are the columns."""
    entries = json_entries(file, form)
    first = list(itertools.islice(entries, LOOKED_AT))
    names = list(dict.fromkeys(name for _, entry in first if isinstance(entry, dict) for name in entry))
    check_columns(len(names))
    places = {name: place for place, name in enumerate(names)}
    plain = any(isinstance(entry, str) for _, entry in first)
    pairs = bool(first) and is_labelled_pair(first[0][1])
    if plain and names:
        raise InvalidInput("some lines are JSON strings and others JSON objects; all lines must have the same form")

    def rows() -> Iterator[Row]:
        for number, entry in itertools.chain(first, entries):
            if isinstance(entry, str) == bool(names):
                raise InvalidInput(
                    f"line {number} is {'a string' if names else 'an object'}, unlike the lines before it"
                )
            if is_labelled_pair(entry) != pairs:
                raise InvalidInput(
                    f"line {number} is {'no labelled pair' if pairs else 'a labelled pair'}, unlike the lines before "
                    "it; to post sentences together with labels, use application/x-ndjson without column, format or "
                    "charset, or put the labels into another file"
                )
            yield number, [entry] if isinstance(entry, str) else cells_of(entry, places)

    return names or ["text"], rows()


def cells_of(entry: dict[str, Any], places: dict[str, int]) -> list[str]:
    """The cells of an object in NDJSON, up to the last column for which the object has a value.

    Later cells would be empty, and are left out to save time. With 1,000 columns (MOST_COLUMNS) and 1,000,000 objects
    of a single key, reading all empty cells took more than the minute allowed for a file.
    """
    cells: list[str] = []
    for name, value in entry.items():
        place = places.get(name)
        if place is not None:
            if place >= len(cells):
                cells += [""] * (place + 1 - len(cells))
            cells[place] = cell_text(value)
    return cells


def is_labelled_pair(entry: str | dict[str, Any]) -> bool:
    return isinstance(entry, dict) and {"a", "b", "label"} <= entry.keys()


def json_entries(file: BinaryIO, form: FileForm) -> Iterator[tuple[int, str | dict[str, Any]]]:
    for number, line in lines_of(file, form, "\n"):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"line {number} is not JSON: {error}") from None
        if not isinstance(entry, str | dict):
            raise InvalidInput(f'line {number}: expected "a sentence" or an object such as {{"text": "a sentence"}}')
        if "\\ud" in line.lower():
            check_surrogates(entry, number)
        yield number, entry


def check_surrogates(entry: str | dict[str, Any], number: int) -> None:
    """Raises InvalidInput for half of a surrogate pair. JSON can contain it, but valid Unicode text cannot."""
    try:
        json.dumps(entry, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"line {number} holds half of a surrogate pair, which is not valid Unicode") from None


def cell_text(value: Any) -> str:
    """A value as text. A whole number is written without decimals."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    # A list or dict from Parquet may contain dates or bytes, which JSON cannot express: `default=str` makes them text.
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)[:LONGEST_ROW]
    return str(value)


def parquet_rows(file: BinaryIO, no_text: dict[int, str]) -> tuple[list[str], Iterator[Row]]:
    try:
        import pyarrow.parquet  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UnsupportedMedia(WITHOUT_PYARROW) from error
    try:
        parquet = pyarrow.parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
        names = list(parquet.schema_arrow.names)
        for place, kind in enumerate(parquet.schema_arrow.types):
            if pyarrow.types.is_nested(kind) or "binary" in str(kind):
                no_text[place] = f"values of the type {str(kind)[:80]}"
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"the Parquet file cannot be read: {str(error)[:200]}") from None

    def rows() -> Iterator[Row]:
        number = 0
        try:
            for batch in parquet.iter_batches(LOOKED_AT, use_threads=False):
                for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number += 1
                    yield number, [cell_text(cell) for cell in cells]
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            # For example, a text is not UTF-8, or a date is out of range.
            raise InvalidInput(f"the Parquet file cannot be read after row {number}: {str(error)[:200]}") from None

    return names, rows()
