"""The input of a bulk command: its files, their format, and the parts into which they are split."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from isosim.bulk.places import Place, reaching
from isosim.encoders.brought import fault_of, vector_of
from isosim.errors import EmptyInput, InvalidInput

ENDINGS = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")
MAGIC = "*?["  # a name with one of these characters is a pattern


@dataclass(frozen=True)
class Source:
    """A file of the input."""

    path: str
    size: int  # bytes
    stamp: str  # ETag (object storage) or modification time; shows whether the content has changed


@dataclass(frozen=True)
class Part:
    """Rows of one input file. Each part has its own output file."""

    number: int  # number of the part, from 0
    source: int  # index of the input file
    first: int  # number of the first row, counted over the whole input
    rows: int
    start: int  # Parquet: number of the first row in the file; other formats: position of the first byte
    stop: int  # in the same unit as `start`: the row or byte after the last one


@dataclass
class Records:
    """The rows of a part of the input."""

    cells: dict[str, Sequence[Any]]  # columns to process; the cells are not checked yet
    kept: pa.Table  # columns to copy to the output
    broken: dict[int, str] = field(default_factory=dict)  # row that cannot be parsed -> reason


Open = Callable[[], BinaryIO]


class Reader(Protocol):
    """Reads one file format."""

    def schema(self, open_file: Open) -> dict[str, str | None]:
        """Name -> type of each column. A type is None if it is unknown. Empty if the format has no schema."""

    def cut(self, open_file: Open, rows: int) -> Iterator[tuple[int, int, int]]:
        """Splits a file into parts of at most `rows` rows. Yields each part's number of rows, start and stop."""

    def read(self, place: Place, path: str, part: Part, columns: Sequence[str], keep: Sequence[str]) -> Records: ...


def sources_of(address: str) -> tuple[Place, list[Source]]:
    """The storage place of an input, and its files, sorted by name. `address` is a file, a folder, or a pattern.

    Skips files whose name begins with `.` or `_`. If there are several files, also skips files with an unknown ending.

    Raises:
        EmptyInput: there is no file.
        InvalidInput: a file is compressed.
    """
    place = Place(address)
    with reaching(address):
        if any(sign in address.rpartition("/")[2] for sign in MAGIC):
            entries = list(place.fs.glob(place.root, detail=True).values())
        elif place.fs.isdir(place.root):
            entries = place.fs.ls(place.root, detail=True)
        elif place.fs.exists(place.root):
            entries = [place.fs.info(place.root) | {"name": place.root}]  # obstore leaves out the bucket
        else:
            raise EmptyInput(f"{address}: no such file or folder")
    files = [one for one in entries if one["type"] == "file" and not fnmatch(one["name"].rpartition("/")[2], "[._]*")]
    for one in files:
        if one["name"].endswith(PACKED):
            raise InvalidInput(
                f"{one['name']} is compressed and cannot be split into parts; decompress it or convert it to Parquet"
            )
    known = [one for one in files if ending(one["name"]) in ENDINGS] if len(files) > 1 else files
    if not known:
        raise EmptyInput(f"{address}: no file whose name ends in {', '.join(ENDINGS)}")
    return place, [Source(one["name"], int(one["size"]), stamp(one)) for one in sorted(known, key=lambda o: o["name"])]


def ending(name: str) -> str:
    _, dot, last = name.rpartition(".")
    return (dot + last).lower()


def stamp(info: dict[str, Any]) -> str:
    """A file's ETag or modification time. Shows whether the file's content has changed."""
    return str(info.get("e_tag") or info.get("mtime") or "")


def form_of(sources: Sequence[Source], asked: str | None) -> str:
    """The requested format of the files. If no format was requested, the endings of the file names decide.

    Raises:
        InvalidInput: an ending is unknown, or the endings mean different formats.
    """
    forms = {asked} if asked else {ENDINGS.get(ending(source.path)) for source in sources}
    if len(forms) > 1:
        raise InvalidInput(
            f"the input mixes formats: {', '.join(sorted(str(form) for form in forms))}; give a pattern for one of them"
        )
    form = forms.pop()
    if form is None:
        raise InvalidInput(
            f"{sources[0].path}: the file's name does not show the format; give --format parquet, csv or jsonl. "
            "Convert an Excel workbook to CSV first: isosim inspect FILE.xlsx --csv FILE.csv"
        )
    return form


def opener(place: Place, path: str) -> Open:
    def open_file() -> BinaryIO:
        with reaching(path):
            file: BinaryIO = place.fs.open(path, "rb")
        return file

    return open_file


def check_columns(
    reader: Reader,
    place: Place,
    sources: Sequence[Source],
    columns: Sequence[str],
    keep: Sequence[str],
    wanted: str = "text",
) -> None:
    """Checks the columns of all files.

    Raises:
        InvalidInput: a file lacks a column, a column to process has another type than `wanted`, or a kept column's
            type differs between files.
    """
    first: dict[str, str | None] | None = None
    for source in sources:
        schema = reader.schema(opener(place, source.path))
        if not schema:
            return
        for name in (*columns, *keep):
            if name not in schema:
                raise InvalidInput(f"{source.path} has no column {name!r}; it has {', '.join(schema)}")
        for name in columns:
            if schema[name] not in (None, wanted):
                raise InvalidInput(f"{source.path}: column {name!r} holds {schema[name]}, not {wanted}")
        types = {name: schema[name] for name in keep}
        if first is not None and types != first:
            raise InvalidInput(
                f"{source.path}: the columns to keep have the types {types}, but in {sources[0].path} they have {first}"
            )
        first = types


def cut(reader: Reader, place: Place, sources: Sequence[Source], rows: int) -> list[Part]:
    """Splits the input into parts, in order.

    Raises:
        EmptyInput: the input has no rows.
    """
    parts: list[Part] = []
    first = 0
    for number, source in enumerate(sources):
        for count, start, stop in reader.cut(opener(place, source.path), rows):
            parts.append(Part(len(parts), number, first, count, start, stop))
            first += count
    if not parts:
        raise EmptyInput(f"{sources[0].path}: no rows")
    return parts


def fault(cell: Any, longest: int) -> str | None:
    """Why a text cannot be embedded; None if it can. The API has the same rules."""
    if cell is None:
        return "null"
    if not isinstance(cell, str):
        return "not_text"
    if not cell or cell.isspace():
        return "empty"
    if len(cell) > longest:
        return "too_long"
    try:
        cell.encode()
    except UnicodeEncodeError:
        return "not_unicode"
    return None


def vector_fault(cell: Any, dim: int, *, unit: bool) -> str | None:
    """Why a cell is not a usable vector of the encoder; None if it is."""
    if cell is None:
        return "null"
    try:
        vector = vector_of(cell)
    except InvalidInput:
        return "not_a_vector"
    if len(vector) != dim:
        return "other_dimension"
    return None if fault_of(vector, dim, unit=unit) is None else "unusable_vector"


def faults(records: Records, rows: int, fault: Callable[[Any], str | None]) -> list[str | None]:
    """For each row, the reason why it is unusable; None if it is usable. The first bad cell gives the reason."""
    columns: Mapping[str, Any] = records.cells
    reasons: list[str | None] = [None] * rows
    for row in range(rows):
        if row in records.broken:
            reasons[row] = "malformed"
            continue
        for name, cells in columns.items():
            reason = fault(cells[row])
            if reason is not None:
                reasons[row] = reason if len(columns) == 1 else f"{name}: {reason}"
                break
    return reasons
