"""Excel workbooks as Excel writes them, and some that it never would."""

import io
import zipfile
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def cell(value: str | float, column: int, row: int) -> str:
    place = f"{chr(65 + column)}{row}"
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'
    return f'<c r="{place}"><v>{value}</v></c>'


def row(number: int, cells: Sequence[Any]) -> str:
    return f'<row r="{number}">{"".join(cell(value, column, number) for column, value in enumerate(cells))}</row>'


def workbook(*sheets: Sequence[Sequence[Any]], names: Sequence[str] = (), xml: str | None = None) -> bytes:
    """A workbook of these sheets; `xml`: the rows of its only sheet, as they are."""
    contents = [xml] if xml is not None else ["".join(row(n, r) for n, r in enumerate(s, 1)) for s in sheets]
    titles = [*names, *(f"Sheet{number}" for number in range(len(names) + 1, len(contents) + 1))]
    count = range(1, len(contents) + 1)
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{TYPES}.sheet.main+xml"/>'
        + "".join(
            f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{TYPES}.worksheet+xml"/>' for n in count
        )
        + "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="r1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
        + "".join(f'<sheet name="{escape(titles[n - 1])}" sheetId="{n}" r:id="r{n}"/>' for n in count)
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        + "".join(
            f'<Relationship Id="r{n}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in count
        )
        + "</Relationships>",
    }
    for number, content in zip(count, contents, strict=True):
        parts[f"xl/worksheets/sheet{number}.xml"] = (
            f'<worksheet xmlns="{MAIN}"><sheetData>{content}</sheetData></worksheet>'
        )
    return zipped({name: f'<?xml version="1.0" encoding="UTF-8"?>{content}' for name, content in parts.items()})


def altered(content: bytes, part: str, before: str, after: str, **more: str) -> bytes:
    """A workbook with other words in one of its parts, and with `more` parts."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert before in parts[part]
    return zipped({**parts, part: parts[part].replace(before, after), **more})


def zipped(parts: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return packed.getvalue()
