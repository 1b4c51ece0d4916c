"""Detects tables, JSON, markup or undecoded bytes that were sent as sentences: `0,2026-01-01,How do I log in?,open`.

With whole rows as sentences, thresholds become too high, because identifiers, dates and states make all rows similar to
each other. In an example, the threshold for 1 % false matches was 0.517 with whole rows, and 0.309 with only the column
of sentences.

A table has the same separator on most lines, and fields such as numbers, dates or states. In prose, a space follows a
comma, and the number of commas differs from line to line. No text of the evaluation data is mistaken for a table
(tests/core/jobs/test_tables.py).
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

from isosim.errors import InvalidInput

LOOKED_AT = 2000  # number of lines at the start of a text that are examined
# Maximum number of characters of the first LOOKED_AT lines that are examined. Without a limit, 20,000,000 characters in
# short cells took 500 MB and blocked Python for a minute.
MOST_CHARACTERS = 400_000
FEWEST = 20  # texts with fewer lines are not examined
MOST = 0.8  # share of lines that must look like rows; other lines may be headers or parts of cells with several lines
EDGE = 3  # number of columns examined at each end of a row; a separator within a text would shift the other columns
LONGEST_FIELD = 40  # maximum number of characters of an identifier, date or number
LONGEST_NAME = 24  # maximum number of characters of the name of a state, language or category
REPEATED = 0.1  # maximum number of distinct states or categories in a column, as a share of the number of lines
SEPARATORS = {"\t": "tabs", "|": "pipes", ";": "semicolons", ",": "commas"}
CERTAIN = ("\t", "|")  # separators that do not occur in prose
FEWEST_QUOTED = 5  # minimum number of lines with doubled quotation marks in a CSV of one column
TAG = re.compile(r"\s*<[!/?]?[A-Za-z][^<>]*>")  # a tag of HTML or XML, at the start of a line
JSON = re.compile(r'\s*(?:[\[{}\]],?|"[^"]*"\s*:.*)\s*')  # a line of indented JSON
CODE = re.compile(r"[!-~]*[0-9][!-~]*")  # an identifier, number or date: no space, at least one digit
IDEOGRAPHS = "\u2e80"  # the first East Asian character
MOMENT = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4} [0-9]{1,2}:[0-9]{2}[!-~ ]*")
# A number that contains commas, such as 1,250 or 3,5. In `0,2026-01-01`, the comma separates cells: no match.
NUMBER = re.compile(r"(?<!\S)[0-9]+(?:,[0-9]+)+(?=[\s.!?)]|$)")


@dataclass(frozen=True)
class Table:
    """A detected table: its separator, how it was detected, and the column (from 1) that may hold the sentences."""

    separator: str
    why: str
    column: int


def check_sentences_only(lines: Iterable[str]) -> None:
    """Raises InvalidInput, with the remedy, if the first lines look like a table, JSON or markup."""
    first = list(islice(lines, LOOKED_AT))
    table = table_of(first)
    if table is not None:
        raise InvalidInput(
            f"texts: these lines look like a table: {table.why}. Name the column with the sentences, perhaps column="
            f"{table.column}, and send the file as it is, with the content-type application/octet-stream; if each line "
            "is a sentence nevertheless, add force=true"
        )
    first = some(first)
    if len(first) < FEWEST:
        return
    if quoted_cells(first):
        raise InvalidInput(
            "texts: these lines look like a CSV with one column, whose cells stand in quotation marks; send it with "
            "the content-type text/csv; if each line is a sentence nevertheless, add force=true"
        )
    if is_markup(first):
        raise InvalidInput(f"texts: {MARKUP}, add force=true")
    values = [value for line in first if isinstance(value := json_value(line), str | dict)]
    if len(values) == len(first) or sum(isinstance(value, dict) for value in values) >= MOST * len(first):
        names = list(next((value for value in values if isinstance(value, dict)), {}))
        which = f", and name the field with the sentences: column=NAME (there are {', '.join(names)[:200]})"
        raise InvalidInput(
            "texts: each line is a JSON value; send the lines as a file, with the content-type application/octet-stream"
            f"{which if names else ''}; if each line is a sentence nevertheless, add force=true"
        )
    if is_indented_json(first):
        raise InvalidInput(f"texts: these lines look like indented JSON; {ONE_A_LINE}")


MARKUP = (
    "most lines begin with a tag, as in HTML or XML; send the text without its tags, one sentence a line; if the tags "
    "belong to the sentences"
)
ONE_A_LINE = (
    "send one JSON value a line, with the content-type application/octet-stream: jq -c '.[]' FILE > FILE.ndjson"
)


def check_decoded(text: str, where: str) -> None:
    """Raises InvalidInput if the text has NUL or escape characters: bytes of UTF-16, of ISO-2022, or of no text at all
    that were read as UTF-8. `where` names the text's place."""
    if "\x1b" in text or "\0" in text:
        raise InvalidInput(
            f"{where} has a control character (NUL or escape), so it is not text in UTF-8; if a file is in UTF-16 or "
            "ISO-2022-JP, for example, name its encoding with charset=iso-2022-jp, or save it as UTF-8"
        )


def is_markup(lines: Sequence[str]) -> bool:
    return len(lines) >= FEWEST and sum(TAG.match(line) is not None for line in lines) > len(lines) / 2


def is_indented_json(lines: Sequence[str]) -> bool:
    return len(lines) >= FEWEST and sum(JSON.fullmatch(line) is not None for line in lines) > len(lines) / 2


def quoted_cells(lines: Sequence[str]) -> bool:
    """Whether the lines are a CSV of one column.

    A cell that contains a comma or a quotation mark must stand in quotation marks, and each quotation mark within the
    cell must be doubled. At least FEWEST_QUOTED lines must contain doubled quotation marks. Dialogue in prose does not
    contain them.
    """
    reasons = 0
    for line in lines:
        cell = line.strip()
        if cell[:1] != '"':
            if '"' in cell or "," in cell:
                return False
        elif len(cell) < 2 or cell[-1] != '"' or '"' in cell[1:-1].replace('""', ""):
            return False
        else:
            reasons += '""' in cell[1:-1]
    return len(lines) >= FEWEST and reasons >= FEWEST_QUOTED


def json_value(line: str) -> object:
    """The JSON value of a line; None if the line is not a JSON object or string."""
    if line.lstrip()[:1] not in ("{", '"'):
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def some(lines: Sequence[str]) -> list[str]:
    """The lines that lie within the first MOST_CHARACTERS characters."""
    size = accumulate(map(len, lines))
    return [line for line, end in zip(lines, size, strict=True) if end <= MOST_CHARACTERS]


def table_of(lines: Sequence[str]) -> Table | None:
    """The table that the lines look like, or None."""
    lines = some(lines)
    if len(lines) < FEWEST:
        return None
    return next((table for separator in SEPARATORS if (table := read(lines, separator)) is not None), None)


def read(lines: Sequence[str], separator: str) -> Table | None:
    """The table that the lines form with this separator, or None."""
    needed = MOST * len(lines)
    if sum(separator in line for line in lines) < needed:
        return None
    rows = [row for line in lines if len(row := cells(line, separator)) > 1]
    if len(rows) < needed:
        return None
    width, same = Counter(map(len, rows)).most_common(1)[0]
    column = longest([row for row in rows if len(row) == width], width)
    name = SEPARATORS[separator]
    for where, edge in edges(rows):
        if sum(is_code(cell) for cell, _ in edge) >= needed:
            return Table(
                separator, f"{where}, if lines are split at {name}, holds numbers, dates or identifiers", column
            )
        names = [cell for cell, tight in edge if is_name(cell, separator, tight=tight)]
        if len(names) >= needed and len(set(names)) <= REPEATED * len(lines):
            return Table(separator, f"{where}, if lines are split at {name}, repeats a few short values", column)
    if same >= needed and (separator in CERTAIN or (width > 2 and sum(is_tight(row) for row in rows) >= needed)):
        return Table(separator, f"most lines have {width - 1} {name}", column)
    return None


def cells(line: str, separator: str) -> list[str]:
    """The cells of a row. Quoted cells may contain the separator, and a comma inside a number separates no cells."""
    if separator == ",":
        line = NUMBER.sub(lambda number: number[0].replace(",", "."), line)
    if '"' not in line or separator in CERTAIN:
        return line.split(separator)
    try:
        return next(csv.reader([" ".join(line.splitlines())], delimiter=separator), [])
    except csv.Error:  # a cell of more than 131,072 characters
        return line.split(separator)


def edges(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yields the name and the cells of each column, for the first and last EDGE columns.

    For each cell, yields its text and whether it is tight. In the first columns, a cell is tight if the next cell does
    not begin with a space. In the last columns, a cell is tight if it does not begin with a space.
    """
    for place in range(EDGE):
        long = [row for row in rows if len(row) > place + 1]
        yield f"column {place + 1}", [(row[place].strip(), not row[place + 1][:1].isspace()) for row in long]
        from_end = [(row[-place - 1].strip(), not row[-place - 1][:1].isspace()) for row in long]
        yield f"column {place + 1} from the end", from_end


def is_code(cell: str) -> bool:
    return len(cell) <= LONGEST_FIELD and bool(CODE.fullmatch(cell) or MOMENT.fullmatch(cell))


def is_name(cell: str, separator: str, *, tight: bool) -> bool:
    """Whether the cell may be a state or category.

    If the separator is a comma or semicolon, the cell must be ASCII and tight (see `edges`). This excludes greetings at
    the start of prose: `Hello, …` (the cell `Hello` is not tight) and `您好,…` (the cell `您好` is not ASCII).
    """
    return 0 < len(cell) <= LONGEST_NAME and (separator in CERTAIN or (tight and cell.isascii()))


def is_tight(row: Sequence[str]) -> bool:
    """False if a space or an ideograph follows a separator, as after a comma in prose."""
    return not any(cell[:1].isspace() or cell[:1] >= IDEOGRAPHS for cell in row[1:])


def longest(rows: Sequence[Sequence[str]], width: int) -> int:
    """The column (from 1) with the longest cells."""
    return 1 + max(range(width), key=lambda place: sum(len(row[place]) for row in rows))
