"""Reads parts of CSV, JSONL and Parquet files.

CSV follows RFC 4180 and needs a header line. A part of CSV or JSONL is a range of bytes that contains whole records.
Python's CSV parser finds the ends of records, so quoted cells may contain line ends, delimiters and doubled quotes.
"""

import csv
import threading
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from isosim.bulk.inputs import Open, Part, Reader, Records, Source, form_of, sources_of
from isosim.bulk.places import Place, reaching
from isosim.errors import EmptyInput, InvalidInput

LONGEST_CELL = 2**30  # largest number of characters of a CSV cell; Python's default is 131,072
MARK = b"\xef\xbb\xbf"  # byte order mark


class ByteCounter:
    """Passes the lines of a file to the CSV parser and counts their bytes.

    The lines are decoded as Latin-1, which has no invalid bytes. `CsvReader.cut` needs only the ends of the rows.
    `CsvReader._head` decodes the column names again, as UTF-8.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        for line in self.file:
            self.taken += len(line)
            yield (line.removeprefix(MARK) if self.taken == len(line) else line).decode("latin-1")


class CsvReader:
    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        csv.field_size_limit(LONGEST_CELL)

    def schema(self, open_file: Open) -> dict[str, str | None]:
        with open_file() as file:
            return dict.fromkeys(self._head(file), "text")

    def _head(self, file: BinaryIO) -> list[str]:
        names = next(csv.reader(iter(ByteCounter(file)), delimiter=self.delimiter), None)
        if names is None:
            raise EmptyInput("a CSV file is empty; its first line must name the columns")
        try:
            decoded = [name.encode("latin-1").decode() for name in names]
        except UnicodeDecodeError:
            raise InvalidInput("the header of a CSV file is not UTF-8") from None
        twice = {name for name in decoded if decoded.count(name) > 1}
        if twice:
            raise InvalidInput(f"the header of a CSV file names {', '.join(sorted(twice))} twice")
        return decoded

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        with open_file() as file:
            lines = ByteCounter(file)
            records = csv.reader(iter(lines), delimiter=self.delimiter)
            try:
                next(records, None)  # skips the header
                start, count = lines.taken, 0
                for record in records:
                    count += bool(record)  # a blank line gives an empty record
                    if count == rows:
                        yield count, start, lines.taken
                        start, count = lines.taken, 0
            except csv.Error as error:
                raise InvalidInput(f"a CSV file cannot be read near line {records.line_num}: {error}") from error
            if count:
                yield count, start, lines.taken

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records:
        with place.fs.open(path, "rb") as file:
            names = self._head(file)
        content: bytes = place.fs.cat_file(path, start=part.start, end=part.stop)
        records = [record for record in csv.reader(split(content), delimiter=self.delimiter) if record]
        broken = {
            row: f"{len(record)} cells, but the header has {len(names)}"
            for row, record in enumerate(records)
            if len(record) != len(names)
        }
        at = {name: number for number, name in enumerate(names)}

        def column(name: str) -> list[str | None]:
            number = at[name]
            return [record[number] if number < len(record) else None for record in records]

        kept = {name: pa.array([readable(cell) for cell in column(name)], pa.string()) for name in keep}
        table = pa.table(kept) if kept else no_columns(len(records))
        return Records({name: column(name) for name in columns}, table, broken)


def split(content: bytes) -> Iterator[str]:
    """Decodes `content` from UTF-8 and yields its lines, each with its line end.

    Each invalid byte becomes a lone surrogate; `fault` rejects cells with surrogates.
    """
    for line in content.splitlines(keepends=True) if b"\r" not in content else lines_of(content):
        yield line.decode("utf-8", "surrogateescape")


def lines_of(content: bytes) -> Iterator[bytes]:
    """Yields the lines of a file's content; only \\n ends a line, not \\r."""
    start = 0
    while start < len(content):
        stop = content.find(b"\n", start) + 1 or len(content)
        yield content[start:stop]
        start = stop


def readable(cell: str | None) -> str | None:
    """A cell as valid Unicode: invalid bytes become U+FFFD."""
    return None if cell is None else cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def no_columns(rows: int) -> pa.Table:
    """A table with this many rows and no columns."""
    return pa.table({"": pa.nulls(rows)}).select([])


class JsonReader:
    def schema(self, open_file: Open) -> dict[str, str | None]:
        """Always empty, because each line may have different keys."""
        return {}

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        with open_file() as file:
            start = at = count = 0
            for line in file:
                at += len(line)
                count += not line.isspace()
                if count == rows:
                    yield count, start, at
                    start, count = at, 0
            if count:
                yield count, start, at

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records:
        content: bytes = place.fs.cat_file(path, start=part.start, end=part.stop)
        rows: list[dict[str, Any]] = []
        broken: dict[int, str] = {}
        for line in content.split(b"\n"):
            if not line or line.isspace():
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                broken[len(rows)] = f"not valid JSON: {error}"
                record = {}
            if not isinstance(record, dict):
                broken[len(rows)] = "not a JSON object"
                record = {}
            rows.append(record)
        kept = {name: pa.array([as_text(row.get(name)) for row in rows], pa.string()) for name in keep}
        table = pa.table(kept) if kept else no_columns(len(rows))
        return Records({name: [row.get(name) for row in rows] for name in columns}, table, broken)


def as_text(value: Any) -> str | None:
    """Strings and None stay unchanged, other values become JSON. So a copied column contains only strings."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def kind_of(kind: pa.DataType) -> str:
    """`text` for strings, `vectors` for lists of floats, otherwise the name of the Arrow type."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if lists and pa.types.is_floating(kind.value_type):
        return "vectors"
    return "text" if is_text(kind) else str(kind)


class ParquetReader:
    """Reads Parquet. Keeps the row group that was read last in memory, because the next part often lies in it too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: tuple[Any, ...] = ()
        self._group: pa.Table | None = None

    def schema(self, open_file: Open) -> dict[str, str | None]:
        with open_file() as file:
            arrow_schema = self._metadata(file).schema.to_arrow_schema()
        return {one.name: kind_of(one.type) for one in arrow_schema}

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        with open_file() as file:
            every = self._metadata(file).num_rows
        for start in range(0, every, rows):
            stop = min(start + rows, every)
            yield stop - start, start, stop

    def _metadata(self, file: Any) -> Any:
        try:
            return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"{getattr(file, 'name', None) or getattr(file, 'path', 'input')}: {error}") from error

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records:
        wanted = list(dict.fromkeys((*columns, *keep)))
        pieces = []
        with self._lock, reaching(path), place.fs.open(path, "rb") as raw, pq.ParquetFile(raw) as file:
            before = 0
            for group in range(file.num_row_groups):
                after = before + file.metadata.row_group(group).num_rows
                if before < part.stop and after > part.start:
                    low, high = max(part.start, before), min(part.stop, after)
                    pieces.append(self._read(file, path, group, wanted).slice(low - before, high - low))
                before = after
        table = pa.concat_tables(pieces).combine_chunks()
        cells = {name: table[name].to_pylist() for name in columns}
        return Records(cells, table.select(list(keep)))

    def _read(self, file: Any, path: str, group: int, wanted: list[str]) -> pa.Table:
        at = (path, group, *wanted)
        if self._group is None or self._at != at:
            self._group, self._at = file.read_row_group(group, columns=wanted, use_threads=False), at
        return self._group


def reader_of(form: str, delimiter: str) -> Reader:
    if form == "parquet":
        return ParquetReader()
    if form == "csv":
        return CsvReader(delimiter)
    return JsonReader()


def open_input(address: str, form: str | None, delimiter: str | None) -> tuple[Place, list[Source], str, str, Reader]:
    """Opens an input; returns its place, its files, their format and delimiter, and a reader for this format.

    If `form` is None, the files' names show the format. If `delimiter` is None, the delimiter is a tab for .tsv and a
    comma otherwise.
    """
    place, sources = sources_of(address)
    form = form_of(sources, form)
    delimiter = delimiter or ("\t" if form == "csv" and sources[0].path.lower().endswith(".tsv") else ",")
    return place, sources, form, delimiter, reader_of(form, delimiter)
