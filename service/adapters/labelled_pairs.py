"""Files of labelled sentence pairs: one file, or the folder of the STS sets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from service.adapters.text_lines import table_lines
from service.core.errors import EmptyInput, InvalidInput
from service.core.jobs.job import LabelledPair
from service.core.jobs.labels import parse_pairs


@dataclass(frozen=True)
class Pairs:
    """One file of gold-scored sentence pairs."""

    left: list[str]
    right: list[str]
    gold: npt.NDArray[np.float64]


def labelled_pairs(path: Path) -> list[LabelledPair]:
    """A table of labels and sentences (`core/jobs/labels.py` says how its columns are found).

    Raises:
        EmptyInput: the file has no rows. InvalidInput: a row is not a labelled pair; the message names its line.
    """
    pairs = parse_pairs(table_lines(path), str(path))
    if not pairs:
        raise EmptyInput(f"{path} holds no labelled pairs")
    return pairs


def read_pairs(path: Path) -> Pairs:
    """The same as columns, without weights. Raises as `labelled_pairs` does."""
    left, right, gold, _ = zip(*labelled_pairs(path), strict=True)
    return Pairs([*left], [*right], np.array(gold))


SETS = {
    "STS12": ["sts12/*.tsv"],
    "STS13": ["sts13/*.tsv"],
    "STS14": ["sts14/*.tsv"],
    "STS15": ["sts15/*.tsv"],
    "STS16": ["sts16/*.tsv"],
    "STS-B": ["stsb/test.tsv"],
    "SICK-R": ["sick/test.tsv"],
}


def read_sets(folder: Path) -> dict[str, list[Pairs]]:
    """Raises InvalidInput where a set is missing."""
    sets = {}
    for name, patterns in SETS.items():
        files = sorted(file for pattern in patterns for file in folder.glob(pattern))
        if not files:
            raise InvalidInput(f"{folder} has no {patterns[0]}")
        sets[name] = [read_pairs(file) for file in files]
    return sets
