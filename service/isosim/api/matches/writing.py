"""Tables as CSV, lines of JSON, or an Excel workbook, in pieces."""

import csv
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Literal

import orjson

from isosim.errors import InvalidInput

FileType = Literal["csv", "ndjson", "xlsx"]
MEDIA: dict[FileType, str] = {
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
NUMBER = re.compile(r"[+-]?[0-9.,]+")
ROWS = 1000  # rows in a piece
MOST_ROWS = 1_048_575  # of a sheet, besides its header
MOST_CHARACTERS = 32_767  # of a cell in a workbook
TEXTS, WIDE, NARROW = ("text A", "text B", "text", "a", "b"), 60, 9  # columns of texts; widths in characters
# A spreadsheet takes a cell that begins so for a formula, also in a CSV.
FORMULA = tuple("=+-@＝＋－＠")
# Where a spreadsheet that takes semicolons or tabs for separators would begin a cell with a formula.
INNER = re.compile(r"[;\t]\s*(?=[=+\-@＝＋－＠][^\s0-9.,])")


class Share(float):
    """A number that a workbook shows in per cent."""


def written(
    kind: FileType,
    names: list[str],
    rows: Iterable[list[Any]],
    worth: Iterable[list[Any]] = (),
    formats: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[bytes]:
    """The table in pieces, the header first. A workbook has the rows of `worth` in a second sheet, `figures`, and shows
    the numbers of a column in its format.

    Raises:
        InvalidInput: a workbook cannot hold so many rows.
    """
    if kind == "ndjson":
        for piece in pieces(rows):
            objects = (dict(zip(names, row, strict=False)) for row in piece)
            yield b"".join(orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n" for one in objects)
    elif kind == "csv":
        yield b"\xef\xbb\xbf" + csv_lines([names])  # Excel takes a CSV without the mark for the machine's own encoding
        for piece in pieces(rows):
            yield csv_lines(piece)
    else:
        yield from workbook({"matches": chain([names], rows), "figures": worth}, formats)


def pieces(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    every = iter(rows)
    return iter(lambda: list(islice(every, ROWS)), [])


def csv_lines(rows: Iterable[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([harmless(cell) for cell in row] for row in rows)
    return text.getvalue().encode()


def harmless(cell: Any) -> Any:
    """The cell; text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return INNER.sub(r"\g<0>'", f"'{cell}" if cell.lstrip().startswith(FORMULA) else cell)


def workbook(sheets: Mapping[str, Iterable[list[Any]]], formats: Mapping[str, str]) -> Iterator[bytes]:
    import xlsxwriter  # noqa: PLC0415 - few answers need it

    with tempfile.TemporaryFile(prefix="isosim-") as file, tempfile.TemporaryDirectory(prefix="isosim-") as folder:
        options = {
            "constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False, "tmpdir": folder,
        }  # fmt: skip
        book = xlsxwriter.Workbook(file, options)
        four, share = (book.add_format({"num_format": one}) for one in ("0.0000", "0.0%"))
        named = {title: book.add_format({"num_format": one}) for title, one in formats.items()}
        for name, rows in sheets.items():
            sheet = book.add_worksheet(name)
            sheet.freeze_panes(1, 0)
            looks: list[Any] = []  # of the columns
            for number, row in enumerate(rows):
                for column, title in enumerate(row if number == 0 else ()):
                    wide = title in TEXTS or (name != "matches" and column < 2)
                    sheet.set_column(column, column, WIDE if wide else min(WIDE, max(NARROW, len(title) + 2)))
                    looks.append(named.get(title) if name == "matches" else None)
                if number > MOST_ROWS:
                    raise InvalidInput(
                        f"a workbook holds at most {MOST_ROWS:,} rows; give at_most, or take the format csv"
                    )
                for column, cell in enumerate(row):
                    if isinstance(cell, str):
                        sheet.write_string(number, column, cell[:MOST_CHARACTERS])
                    elif isinstance(cell, bool):
                        sheet.write_boolean(number, column, cell)
                    elif cell is not None:
                        usual = share if isinstance(cell, Share) else None if float(cell).is_integer() else four
                        sheet.write_number(number, column, cell, looks[column] or usual)
        book.close()
        file.seek(0)
        while piece := file.read(1 << 16):
            yield piece
