"""The tables of a match as a workbook shows them: what a person reads first, their own columns, then technical ones."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from isosim.api.matches.views import Cells, Form, View, unlike

# A number that a workbook holds as it is written: no leading zero, and not more digits than it keeps.
PLAIN = re.compile(r"-?(?:0|[1-9]\d{0,9})(?:\.(\d{1,5}))?")
PERCENT = '[>0.99]"above 99 %";[<0.01]"below 1 %";0%'  # labels support no finer number
FINE, FOUR, ROWS = "0.0000%", "0.0000", "0"
TITLE, SURE, NOTES = "match found", "how sure they mean the same", "notes"
# The technical columns of a table: what they hold, and their format.
OF_PAIRS = {
    "row A": ("number of the line or row with text A in the file, counted from 1", ROWS),
    "row B": ("the same of text B", ROWS),
    "similarity": ("how alike the two texts are by their vectors; 1: the same text", FOUR),
    "adjusted": ("similarity less what other words take away; where it is known, it orders the pairs", FOUR),
    "percentile": ("share of random pairs of texts that are less alike", FINE),
    "label": ("your judgement: 1 the same, 0 different", ROWS),
    "pair": ("number of the pair in this match, by which labels name it", ROWS),
}
OF_GROUPS = {
    "rows in the group": ("number of rows in the group", ROWS),
    "central": ("whether the text is the one that the others of the group are most like", ROWS),
    "row": ("number of the line or row in the file, counted from 1", ROWS),
    "lowest similarity": ("how alike the two least alike texts of the group are", FOUR),
}
READ = {
    TITLE: "whether a text of the other rows means the same",
    SURE: "probability as far as the judgements tell; of a pair that you judged the same, 1; empty: too few are judged",
    NOTES: "what speaks for or against the pair: your judgement, the same text, other numbers, a negation",
}


@dataclass(frozen=True)
class Sheet:
    titles: list[str]
    rows: Iterator[Cells]
    formats: dict[str, str]  # title -> number format
    explained: list[list[str]]  # title and meaning of columns


def sheet(view: View, form: Form, rows: Iterator[Cells], reading: Callable[[Iterable[int]], Iterator[int]]) -> Sheet:
    """The rows of `View.table`, but for the judged pairs, whose names a reader of labels knows. `reading` goes through
    places of rows, and may raise."""
    given = view.result.job.request.match
    names = given.columns if given is not None and given.columns else ((),)
    sides = names[:1] if form == "clusters" else (names[0], names[-1])
    own = [
        f"{name} ({'AB'[end]})" if len(sides) == 2 and name in sides[1 - end] else name
        for end, columns in enumerate(sides)
        for name in columns
    ]
    first, technical, arranged = {
        "pairs": (["text A", "text B", SURE, NOTES], OF_PAIRS, of_pair),
        "best": ([TITLE, "text A", "text B", SURE, NOTES], OF_PAIRS, of_row),
        "clusters": (["group", "text"], OF_GROUPS, of_group),
    }[form]
    titles = unlike([*first, *technical, *own])
    shown = (
        titles[: len(first)] + titles[len(first) + len(technical) :] + titles[len(first) : len(first) + len(technical)]
    )
    kinds: list[str | None] = []
    for side in range(len(sides)):
        cells = (
            view.result.files[-side][row].cells for row in reading(range(len(view.result.found.sides[-side].text_of)))
        )
        kinds += number_formats(cells, len(sides[side]))
    own_formats = zip(shown[len(first) :], kinds, strict=False)
    return Sheet(
        shown,
        (arranged(cells, kinds) for cells in rows),
        {SURE: PERCENT, **{title: kind for title, (_, kind) in technical.items()}}
        | {title: kind for title, kind in own_formats if kind is not None},
        [[f"column: {title}", READ[title]] for title in first if title in READ]
        + [[f"column: {title}", words] for title, (words, _) in technical.items()],
    )


def of_pair(cells: Cells, kinds: Sequence[str | None]) -> Cells:
    row_a, row_b, a, b, similarity, adjusted, percentile, probability, label, pair, numbers, negation, *own = cells
    copy = b is not None and pair is None
    notes = {"the same text": copy, "judged the same": label == 1, "other numbers": numbers, "a negation": negation}
    said = ", ".join(words for words, holds in notes.items() if holds)
    technical = [row_a, row_b, similarity, adjusted, percentile, label, pair]
    return [a, b, 1.0 if copy or label == 1 else probability, said or None, *numbers_of(own, kinds), *technical]


def of_row(cells: Cells, kinds: Sequence[str | None]) -> Cells:
    return ["no" if cells[3] is None else "yes", *of_pair(cells, kinds)]


def of_group(cells: Cells, kinds: Sequence[str | None]) -> Cells:
    cluster, size, lowest, central, row, text, *own = cells
    return [cluster, text, *numbers_of(own, kinds), size, "yes" if central else "no", row, lowest]


def numbers_of(own: Sequence[str | None], kinds: Sequence[str | None]) -> Cells:
    """A person's cells, those of columns of numbers as numbers."""
    return [float(cell) if kind and cell else cell for cell, kind in zip(own, kinds, strict=True)]


def number_formats(rows: Iterable[Sequence[str]], width: int) -> list[str | None]:
    """For each column, the format of its numbers. None if a cell is not a number, or would look different as a number.

    >>> number_formats([["1", "1.50", "1,5", "007", ""], ["20", "2.25", "2,5", "1", ""]], 5)
    ['0', '0.00', None, None, None]
    >>> number_formats([["1.5", "1.10"], ["2", "1.9"]], 2)
    ['General', None]
    """
    decimals: list[set[int]] = [set() for _ in range(width)]
    zeros, left = set[int](), set(range(width))
    for cells in rows:
        for column in [*left]:
            if not (cell := cells[column]):
                continue
            if (found := PLAIN.fullmatch(cell)) is None:
                left.discard(column)
                continue
            decimals[column].add(len(found[1] or ""))
            if (found[1] or "").endswith("0"):
                zeros.add(column)
        if not left:
            break
    return [format_of(decimals[column], column in zeros) if column in left else None for column in range(width)]


def format_of(decimals: set[int], zeros: bool) -> str | None:
    if len(decimals) == 1:
        (digits,) = decimals
        return f"0.{'0' * digits}" if digits else "0"
    return "General" if decimals and not zeros else None
