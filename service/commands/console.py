"""Standard output: tables for people at a terminal, tabs and JSON for programs."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_WIDTH = 200  # characters of a table that nobody's terminal bounds


def dumped(value: object) -> bytes:
    """JSON on one line; a NaN becomes null and a float32 keeps its shortest form, as over HTTP."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SERIALIZE_DATACLASS)


def print_json(value: object) -> None:
    print(dumped(value).decode())


def remark(text: str) -> None:
    """A line on stderr beside the results."""
    print(text, file=sys.stderr, flush=True)


def tabbed(cells: Iterable[str]) -> str:
    """A line of a TSV file: a tab or a line's end within a cell becomes a space."""
    return "\t".join(cell.replace("\t", " ").replace("\n", " ").replace("\r", " ") for cell in cells)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, head: bool = False) -> None:
    """A table on a terminal; lines with tabs where a program reads, with a head only where `head` says so."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in [columns, *cells] if head else cells:
            print(tabbed(row))
        return
    from rich.markup import escape  # noqa: PLC0415 - a program that reads need not wait for it
    from rich.table import Table  # noqa: PLC0415

    table = Table(*columns)
    for row in cells:
        table.add_row(*map(escape, row))
    print_table(table)


def print_table(table: "Table") -> None:
    """As it is drawn, also where a file takes it."""
    from rich.console import Console  # noqa: PLC0415

    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
