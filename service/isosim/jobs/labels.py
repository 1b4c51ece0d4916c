"""Reads labelled pairs from the rows of a table, whatever its file format."""

import math
from collections.abc import Iterable, Sequence

from isosim.errors import InvalidInput
from isosim.jobs.job import LabelledPair

COLUMNS = 3
HIGHEST_GRADE = 5.0
WANTED = "write 1 for a match and 0 for no match, or a grade from 0 to 5"
LABEL, WEIGHT = "label", "weight"  # column names, as are `a` and `b`


def parse_pairs(rows: Iterable[tuple[int, Sequence[str]]], name: str) -> list[tuple[int, LabelledPair]]:
    """Reads labelled pairs and their line numbers from a table.

    If the header names the columns a, b and label, other columns than these and `weight` are ignored. Otherwise the
    columns are label, sentence, sentence or sentence, sentence, label, and these rules are tried in order until one of
    them decides whether the first or the last column holds the labels:

    1. If one of the two columns contains more numbers, it holds the labels.
    2. If one of them contains fewer numbers outside 0 to 5, it holds the labels.
    3. If the header names one of them `label`, it holds the labels.
    4. If all three columns contain only numbers, and the first and the last column only numbers from 0 to 5, the table
       is refused.
    5. Otherwise the first column holds the labels.

    The first row is a header, and is skipped, if neither its first nor its last cell is a number. A table may have a
    fourth column, for `LabelledPair.weight`, if the header names it `weight`. The console applies the same rules
    (`console/labels.js`).

    Args:
        rows: line numbers and cells, without blank lines.
        name: name of the file, for messages.

    Raises:
        InvalidInput: a row is not a labelled pair (the message names its line), or the first and the last column could
            both hold the labels.

    >>> parse_pairs([(1, ["match", "a", "b"]), (2, ["1", "red car", "crimson car"])], "pairs.tsv")
    [(2, LabelledPair(a='red car', b='crimson car', label=1.0, weight=1.0))]
    >>> parse_pairs([(1, ["a", "b", "match", "weight"]), (2, ["red car", "slow boat", "0", "12.5"])], "pairs.tsv")
    [(2, LabelledPair(a='red car', b='slow boat', label=0.0, weight=12.5))]
    >>> parse_pairs([(1, ["id", "a", "b", "label"]), (2, ["7", "red car", "slow boat", "0"])], "pairs.tsv")
    [(2, LabelledPair(a='red car', b='slow boat', label=0.0, weight=1.0))]
    """
    table = named_columns(list(rows), name)
    weights: list[float] = [1.0] * len(table)
    names = [cell.strip().lower() for cell in table[0][1]] if table else []
    if len(names) == COLUMNS + 1 and names.count(WEIGHT) == 1:
        table, weights = without_weights(table, names.index(WEIGHT), name)
    for line, cells in table:
        if len(cells) != COLUMNS:
            raise InvalidInput(
                f"{name}, line {line}: expected a label and two sentences (label, a, b or a, b, label), "
                f"found {len(cells)} columns; with more columns, the header names the three: a, b, label"
            )
    header: list[str] = []
    every = [*table]
    if table and label_of(table[0][1][0]) is None and label_of(table[0][1][-1]) is None:
        header = [one for one in names if one != WEIGHT]
        del table[0], weights[0]
    firsts, lasts = ([label_of(cells[column]) for _, cells in table] for column in (0, -1))
    if table and not any(label is not None for label in firsts + lasts):
        line, cells = every[0]
        raise InvalidInput(
            f"{name}: no row has a number in its first or its last column (line {line} has {cells[0][:20]!r} and "
            f"{cells[-1][:20]!r}); one of the two has to hold the labels: {WANTED}{in_the_middle(table)}"
        )
    first = is_first(table, header, worse(firsts), worse(lasts), name)
    pairs: list[tuple[int, LabelledPair]] = []
    for (line, cells), label, weight in zip(table, firsts if first else lasts, weights, strict=True):
        if label is None:
            raise InvalidInput(
                f"{name}, line {line}: the label {cells[0 if first else -1][:20]!r} is not a number; {WANTED}"
            )
        a, b = (cells[1], cells[2]) if first else (cells[0], cells[1])
        if not a.strip() or not b.strip():
            raise InvalidInput(f"{name}, line {line}: a sentence is empty")
        pairs.append((line, LabelledPair(a, b, label, weight)))
    return pairs


def named_columns(table: list[tuple[int, Sequence[str]]], name: str) -> list[tuple[int, Sequence[str]]]:
    """The columns a, b, label and weight of a table whose header names at least the first three; else all columns."""
    header = [cell.strip().lower() for cell in table[0][1]] if table else []
    if any(header.count(column) != 1 for column in ("a", "b", LABEL)):
        return table
    columns = [header.index(column) for column in ("a", "b", LABEL, WEIGHT) if column in header]
    for line, cells in table:
        if len(cells) != len(header):
            raise InvalidInput(f"{name}, line {line}: expected {len(header)} columns, found {len(cells)}")
    return [(line, [cells[column] for column in columns]) for line, cells in table]


def in_the_middle(table: Sequence[tuple[int, Sequence[str]]]) -> str:
    """End of an error message: advice if the middle column seems to hold the labels, otherwise empty."""
    labels = [label_of(cells[1]) for _, cells in table]
    return ". Column 2 seems to hold the labels: move it to the front" if labels and None not in labels else ""


def is_first(
    table: Sequence[tuple[int, Sequence[str]]],
    names: Sequence[str],
    first: tuple[int, int],
    last: tuple[int, int],
    name: str,
) -> bool:
    """True if the first column holds the labels, False if the last one does.

    Args:
        first, last: sort keys of the two columns, made by `worse`.

    Raises:
        InvalidInput: both columns could hold the labels (rule 4 of `parse_pairs`).
    """
    if [*names] == ["a", "b", LABEL]:
        return False
    if first != last:
        return first < last
    if names and LABEL in (names[0], names[-1]):
        return names[0] == LABEL
    if table and first == (0, 0) and all(label_of(cells[1]) is not None for _, cells in table):
        raise InvalidInput(
            f"{name}: the first and the last column could both hold the labels; add a header that names the right one: "
            f"{LABEL},a,b or a,b,{LABEL}"
        )
    return True


def worse(labels: Sequence[float | None]) -> tuple[int, int]:
    """Sort key of a column: the number of cells that are not numbers, then the number of numbers outside 0 to 5.

    Of two columns, the one with the smaller key is more likely to hold the labels.
    """
    return labels.count(None), sum(label is not None and not 0 <= label <= HIGHEST_GRADE for label in labels)


def without_weights(
    table: list[tuple[int, Sequence[str]]], column: int, name: str
) -> tuple[list[tuple[int, Sequence[str]]], list[float]]:
    """The table without its weight column, and one weight for each row. The header gets the weight 1."""
    rest: list[tuple[int, Sequence[str]]] = [(table[0][0], drop(table[0][1], column))]
    weights = [1.0]
    for line, cells in table[1:]:
        weight = label_of(cells[column]) if len(cells) > column else None
        if weight is None or weight <= 0:
            raise InvalidInput(f"{name}, line {line}: the weight must be a number above 0")
        rest.append((line, drop(cells, column)))
        weights.append(weight)
    return rest, weights


def drop(cells: Sequence[str], column: int) -> list[str]:
    return [*cells[:column], *cells[column + 1 :]]


def label_of(cell: str) -> float | None:
    """The cell as a number, or None if it is not a finite number."""
    try:
        label = float(cell)
    except ValueError:
        return None
    return label if math.isfinite(label) else None
