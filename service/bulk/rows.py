"""Which rows have a result, and what is said of those that have none."""

from collections.abc import Mapping
from typing import Any

from service.bulk.inputs import Records

BAD = ("malformed", "null", "not_text", "empty", "too_long", "not_unicode")


def fault(cell: Any, longest: int) -> str | None:
    """Why a cell cannot be embedded; None where it can. The API's own rules (422 and 400 there)."""
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


def faults(records: Records, rows: int, longest: int) -> list[str | None]:
    """For each row the reason why it has no result; with several columns the first fault counts."""
    columns: Mapping[str, Any] = records.cells
    found: list[str | None] = [None] * rows
    for row in range(rows):
        if row in records.broken:
            found[row] = "malformed"
            continue
        for name, cells in columns.items():
            reason = fault(cells[row], longest)
            if reason is not None:
                found[row] = reason if len(columns) == 1 else f"{name}: {reason}"
                break
    return found
