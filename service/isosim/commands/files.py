"""Defines the command `isosim inspect`, which shows how a file would be read.

Also defines the options that all commands which read files have in common.
"""

import csv
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from isosim.commands.shared import AsJson
from isosim.commands.terminal import print_json, remark
from isosim.jobs.intake import Limits
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.tables import KINDS
from isosim.jobs.text_lines import STDIN
from isosim.settings import Settings

Column = Annotated[
    str | None, typer.Option(help="for a table: name or number (from 1) of the column with the sentences")
]
Charset = Annotated[str | None, typer.Option(help="encoding of the file; detected by default")]
FileFormat = Annotated[str | None, typer.Option("--format", help=f"{', '.join(KINDS)}; default: by the file's ending")]
Sheet = Annotated[str | None, typer.Option(help="sheet of a workbook; default: the longest")]
Header = Annotated[
    bool | None, typer.Option("--header/--no-header", help="whether the first row contains column names")
]
# Maximum number of rows of a file; more than a server allows, because the command runs on the user's own machine.
MOST = 10_000_000


def limits() -> Limits:
    return Limits(Settings().max_characters, MOST, MOST * 1000)


def notices(file: Path, facts: dict[str, Any]) -> None:
    """Prints to stderr what was guessed about a file and what is left out."""
    name = "standard input" if file == STDIN else file
    for notice in facts["notices"]:
        remark(f"{name}: {notice}")


def inspect(
    file: Annotated[Path, typer.Argument(help="text, CSV, TSV, NDJSON, Parquet, .xlsx; - reads standard input")],
    column: Column = None,
    charset: Charset = None,
    file_format: FileFormat = None,
    sheet: Sheet = None,
    header: Header = None,
    as_csv: Annotated[
        Path | None, typer.Option("--csv", help="also write the table to this file, as UTF-8 CSV")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a file's format, columns and first rows, and which sentences a calibration would take from it."""
    reading = Reading("facts", column, file_format, charset, sheet, header)  # type: ignore[arg-type]
    with read_path(file, reading, limits()) as (facts, _):
        pass
    if as_csv is not None:
        with ExitStack() as stack:
            _, rows = stack.enter_context(read_path(file, replace(reading, give="rows", column=None), limits()))
            target = stack.enter_context(as_csv.open("w", encoding="utf-8", newline=""))
            writer = csv.writer(target)
            if not facts["header"]:
                writer.writerow(facts["columns"])
            writer.writerows(rows)
    if as_json:
        print_json(facts)
        return
    kind = [facts["format"], facts["encoding"], f"sheet {facts['sheet']!r}" if facts["sheet"] is not None else None]
    print(", ".join(filter(None, kind)))
    for place, name in enumerate(facts["columns"]):
        examples = [row[place] for row in facts["rows"] if len(row) > place and row[place].strip()]
        mark = "*" if name == facts["column"] else " "
        print(f"{mark} {name}: {'; '.join(example[:60] for example in examples[:2])}")
    print(f"{facts['sentences']:,} sentences in {facts['column']!r}, {facts['distinct']:,} of them distinct")
    notices(file, facts)
