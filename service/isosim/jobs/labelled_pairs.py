"""Reads files of labelled sentence pairs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.intake import Limits
from isosim.jobs.job import LabelledPair
from isosim.jobs.labels import parse_pairs
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.tables import csv_rows, encoding_of, numbered

MOST = 1_000_000  # maximum number of labelled pairs in a file
LIMITS = Limits(characters=1 << 20, sentences=MOST, size=10_000_000_000, labels=MOST)


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
        EmptyInput, InvalidInput: the file has no rows, a row is not a labelled pair, or its label is not of the kind;
            the message names the lines.
    """
    with read_path(path, Reading("labels", labels=kind), LIMITS) as (_, pairs):
        return [LabelledPair(*pair) for pair in pairs]


def read_pairs(path: Path) -> Pairs:
    """Reads the pairs of an evaluation set into columns. A `.csv` has commas and quotation marks; any other file has
    tabs, and its quotation marks are part of the text.

    Raises:
        EmptyInput, InvalidInput: see `labelled_pairs`.
    """
    quoted = path.suffix.lower() == ".csv"
    with path.open("rb") as file:
        lines = numbered(file, encoding_of(file, None)[0])
        try:
            table = csv_rows(lines, "," if quoted else "\t", quoted=quoted)
            pairs = parse_pairs((number, cells) for number, cells in table if any(map(str.strip, cells)))
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None
    if not pairs:
        raise EmptyInput(f"{path} holds no labelled pairs")
    left, right, gold, _ = zip(*(pair for _, pair in pairs), strict=True)
    return Pairs([*left], [*right], np.array(gold))
