"""Reads files of labelled sentence pairs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.labels import parse_pairs
from isosim.jobs.requirements import check_labels
from isosim.jobs.sandbox import Limits, Reading, read_path
from isosim.jobs.tables import NEUTRAL, csv_rows, encoding_of, numbered

# At most 1,000,000 rows; no limit for the characters of a cell.
LIMITS = Limits(characters=0, sentences=1_000_000, size=10_000_000_000)


@dataclass(frozen=True)
class Pairs:
    """The sentence pairs of one file, with their gold scores."""

    left: list[str]
    right: list[str]
    gold: npt.NDArray[np.float64]


def labelled_pairs(path: Path, kind: str) -> list[LabelledPair]:
    """Reads a table of labels and sentences in any format; `jobs/labels.py` finds its columns.

    `kind`: what the labels mean (LABEL_KINDS).

    Raises:
        EmptyInput: the file has no rows.
        InvalidInput: a row is not a labelled pair, or its label is not of the kind; the message names the lines.
    """
    with read_path(path, Reading("numbered_rows"), LIMITS) as (_, rows):
        pairs = pairs_in(rows, path)
    try:
        check_labels((pair for _, pair in pairs), kind, where=[f"line {line}" for line, _ in pairs])
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return [pair for _, pair in pairs]


def pairs_in(rows: Iterable[tuple[int, Sequence[str]]], path: Path) -> list[tuple[int, LabelledPair]]:
    pairs = parse_pairs(rows, str(path))
    if not pairs:
        raise EmptyInput(f"{path} holds no labelled pairs")
    return pairs


def read_pairs(path: Path) -> Pairs:
    """Reads the pairs of an evaluation set into columns. A `.csv` has commas and quotation marks; any other file has
    tabs, and its quotation marks are part of the text.

    Raises:
        EmptyInput, InvalidInput: see `labelled_pairs`.
    """
    quoted = path.suffix.lower() == ".csv"
    with path.open("rb") as file:
        lines = numbered(file, encoding_of(file, None)[0], "\n", NEUTRAL)
        try:
            rows = [
                row for row in csv_rows(lines, "," if quoted else "\t", quoted=quoted) if any(map(str.strip, row[1]))
            ]
        except InvalidInput as error:
            raise InvalidInput(f"{path}, {error}") from None
    left, right, gold, _ = zip(*(pair for _, pair in pairs_in(rows, path)), strict=True)
    return Pairs([*left], [*right], np.array(gold))
