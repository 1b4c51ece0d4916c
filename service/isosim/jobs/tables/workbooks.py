"""The sheets of an Excel workbook.

A workbook is a zip archive of XML files. It is checked before it is parsed: the parser loads whole sheets into memory,
and the parser's messages do not say what is wrong with a damaged or hostile archive.
"""

import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from isosim.errors import EmptyInput, InvalidInput, UnsupportedMedia
from isosim.jobs.tables.detection import MOST_COLUMNS
from isosim.wording import named

FEW_ROWS = 20  # a sheet with fewer rows is skipped as a cover sheet if another sheet has at least 20 rows
EXPANDED = 2 << 30  # maximum bytes that a workbook may unpack to
PROLOG = 4096  # bytes at the beginning of an XML file that are searched for a document type (DOCTYPE)
FIRST_ROWS = 1 << 20  # `check_width` counts the columns in this many bytes from the beginning of a sheet's file
ROW_END, FILLED_CELL = re.compile(rb"</(?:\w+:)?row>"), re.compile(rb"<(?:\w+:)?(?:v|is)[ >]")
SAVE_AGAIN = "open the workbook in a spreadsheet program and save it again, or as CSV"
WITHOUT_CALAMINE = (
    "this server cannot read Excel workbooks: install python-calamine (pip install 'isosim[xlsx]'), or save the sheet "
    "as CSV"
)


def sheet_rows(file: BinaryIO, sheet: str | None) -> tuple[list[str], str, Iterator[tuple[int, list[Any]]]]:
    """Names of the sheets, the name of the sheet that is read, and its rows.

    If `sheet` is None, reads the first sheet with at least 20 rows. If no sheet has 20 rows, reads the longest sheet.
    A cell with a formula has the value that was saved with it.
    """
    try:
        from python_calamine import CalamineError, CalamineWorkbook, PasswordError  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UnsupportedMedia(WITHOUT_CALAMINE) from error
    parts = checked_parts(file)
    try:
        workbook = CalamineWorkbook.from_filelike(file)
        sheets = list(workbook.sheet_names)
        if sheet is not None and sheet not in sheets:
            raise InvalidInput(f"sheet: there is no {sheet[:80]!r}; the sheets are {named(sheets)}")
        chosen: str | None = sheet
        rows: Any = None
        for name in sheets if sheet is None else [sheet]:
            check_width(file, name, parts.get(name))
            content = workbook.get_sheet_by_name(name)
            if content.height and (rows is None or content.height > rows.height):
                chosen, rows = name, content
            if content.height >= FEW_ROWS:
                break
    except PasswordError:
        raise InvalidInput("the workbook is protected by a password; save it without one") from None
    except (CalamineError, OSError, ValueError) as error:
        raise InvalidInput(f"the workbook cannot be read ({str(error)[:200]}); save it again, or as CSV") from None
    if rows is None:
        raise EmptyInput("the workbook is empty" if sheet is None else f"the sheet {sheet!r} is empty")
    # `iter_rows` includes empty rows at the top, so a spreadsheet program shows the same row numbers.
    return sheets, str(chosen), enumerate(rows.iter_rows(), 1)


def checked_parts(file: BinaryIO) -> dict[str, str]:
    """Name of each sheet -> path of its file in the archive. Sheets whose file is missing are left out.

    Raises:
        InvalidInput: the workbook unpacks to more bytes than allowed, or contains a part that no spreadsheet program
            writes.
    """
    with opened(file) as archive:
        members, names = archive.infolist(), set(archive.namelist())
        size = sum(member.file_size for member in members)
        if size > EXPANDED:
            raise InvalidInput(
                f"the workbook unpacks to {size:,} bytes; the limit is {EXPANDED:,}; save the sheet as CSV"
            )
        for member in members:
            if member.filename.startswith("/") or ".." in re.split(r"[/\\]", member.filename):
                raise InvalidInput(
                    f"the workbook contains a file with a path outside of the workbook, {member.filename[:80]!r}; "
                    f"{SAVE_AGAIN}"
                )
            if member.filename.endswith((".xml", ".rels")):
                with archive.open(member) as content:
                    if b"<!DOCTYPE" in content.read(PROLOG):
                        raise InvalidInput(
                            f"{member.filename[:80]!r} in the workbook defines XML entities; {SAVE_AGAIN}"
                        )
        targets = {
            relation.get("Id"): posixpath.normpath(posixpath.join("/xl", relation.get("Target", ""))).lstrip("/")
            for relation in elements(archive, "xl/_rels/workbook.xml.rels", "Relationship")
        }
        parts = {}
        for sheet in elements(archive, "xl/workbook.xml", "sheet"):
            name = sheet.get("name", "")
            part = targets.get(next((value for key, value in sheet.attrib.items() if key.endswith("}id")), None), "")
            if part in names:
                parts[name] = part
            elif part and not part.startswith("xl/"):
                raise InvalidInput(
                    f"the workbook's sheet {name[:80]!r} is a file outside of the workbook, {part[:80]!r}; {SAVE_AGAIN}"
                )
    return parts


@contextmanager
def opened(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Opens the archive. Afterwards the file is at its beginning. Raises InvalidInput if a part cannot be unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise InvalidInput(f"the workbook is damaged or packed in an unusual way ({error}); {SAVE_AGAIN}") from None
    finally:
        file.seek(0)


def elements(archive: zipfile.ZipFile, part: str, name: str) -> list[Element]:
    """The XML elements called `name` in a part of the archive; an empty list if the part is missing or is not XML.

    The caller must first check that the part's prolog has no DOCTYPE: a DOCTYPE can define entities that fill the
    memory when they are expanded.
    """
    try:
        root = ElementTree.fromstring(archive.read(part))  # noqa: S314 - the part defines no entities
    except (KeyError, ElementTree.ParseError):
        return []
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def check_width(file: BinaryIO, sheet: str, part: str | None) -> None:
    """Raises InvalidInput if one of the first rows has too many cells. Checked before the sheet is parsed, because the
    parser holds all rows in memory."""
    if part is None:
        return
    with opened(file) as archive, archive.open(part) as content:
        rows = ROW_END.split(content.read(FIRST_ROWS))
    if max(len(FILLED_CELL.findall(row)) for row in rows) > MOST_COLUMNS:
        raise InvalidInput(
            f"the sheet {sheet[:80]!r} has more than {MOST_COLUMNS:,} columns; send only the one with the sentences, "
            "or name another sheet: sheet=NAME"
        )
