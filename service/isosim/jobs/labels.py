"""Reads labelled pairs from the rows of a table, whatever its file format."""

import math
from collections.abc import Iterable, Sequence

from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair

HIGHEST_GRADE = 5.0
WANTED = "write 1 for a match and 0 for no match, or a grade from 0 to 5"
A, B, LABEL, WEIGHT = "a", "b", "label", "weight"  # names of columns
NAME_THEM = "name the columns in a first row: a, b, label"


def parse_pairs(rows: Iterable[tuple[int, Sequence[str]]]) -> list[tuple[int, LabelledPair]]:
    """Reads labelled pairs and their line numbers from a table.

    If the first row names the columns a, b and label, and perhaps `weight` (for `LabelledPair.weight`), other columns
    are ignored. Without these names there are two sentences and, before or behind them, a column of labels: the one
    with more numbers, else the one that the first row names `label`. The first row has names if neither its first nor
    its last cell is a number.

    Args:
        rows: line numbers and cells, without blank lines.

    Raises:
        InvalidInput: a row is not a labelled pair (the message names its line), or it is not clear which column holds
            the labels.

    >>> parse_pairs([(1, ["match", "a", "b"]), (2, ["1", "red car", "crimson car"])])
    [(2, LabelledPair(a='red car', b='crimson car', label=1.0, weight=1.0))]
    >>> parse_pairs([(1, ["id", "a", "b", "label"]), (2, ["7", "red car", "slow boat", "0"])])
    [(2, LabelledPair(a='red car', b='slow boat', label=0.0, weight=1.0))]
    """
    table = list(rows)
    if not table:
        return []
    width = len(table[0][1])
    for line, cells in table:
        if len(cells) != width:
            raise InvalidInput(f"line {line}: expected {width} columns, found {len(cells)}")
    names: list[str] = []
    if number_of(table[0][1][0]) is None and number_of(table[0][1][-1]) is None:
        names = [cell.strip().lower() for cell in table.pop(0)[1]]
    a, b, label, weight = columns_of([cells for _, cells in table], names, width) if table else (0, 0, 0, None)
    pairs: list[tuple[int, LabelledPair]] = []
    for line, cells in table:
        value, heavy = number_of(cells[label]), 1.0 if weight is None else number_of(cells[weight])
        if value is None:
            raise InvalidInput(f"line {line}: the label {cells[label][:20]!r} is not a number; {WANTED}")
        if heavy is None or heavy <= 0:
            raise InvalidInput(f"line {line}: the weight must be a number above 0")
        if not cells[a].strip() or not cells[b].strip():
            raise InvalidInput(f"line {line}: a sentence is empty")
        pairs.append((line, LabelledPair(cells[a], cells[b], value, heavy)))
    return pairs


def columns_of(table: Sequence[Sequence[str]], names: Sequence[str], width: int) -> tuple[int, int, int, int | None]:
    """The columns of a, b, label and weight. Raises InvalidInput if they are not clear."""
    weight = names.index(WEIGHT) if names.count(WEIGHT) == 1 else None
    if all(names.count(column) == 1 for column in (A, B, LABEL)):
        return names.index(A), names.index(B), names.index(LABEL), weight
    rest = [column for column in range(width) if column != weight]
    if len(rest) != 3:
        raise InvalidInput(f"expected a label and two sentences, found {width} columns; {NAME_THEM}")
    first, last = (sum(number_of(cells[column]) is not None for cells in table) for column in (rest[0], rest[-1]))
    if not first and not last:
        raise InvalidInput(f"neither the first nor the last column has a number; {WANTED}")
    if first == last and (not names or LABEL not in (names[rest[0]], names[rest[-1]])):
        raise InvalidInput(f"the first and the last column could both hold the labels; {NAME_THEM}")
    label = rest[0] if first > last or (first == last and names[rest[0]] == LABEL) else rest[-1]
    a, b = (column for column in rest if column != label)
    return a, b, label, weight


def number_of(cell: str) -> float | None:
    """The cell as a number, or None if it is not a finite number."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
