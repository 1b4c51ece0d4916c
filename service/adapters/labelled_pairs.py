"""Files of labelled sentence pairs: one file, or the folder of the STS sets."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from service.adapters.text_lines import read_lines
from service.core.errors import InvalidInput


@dataclass(frozen=True)
class Pairs:
    """One file of gold-scored sentence pairs."""

    left: list[str]
    right: list[str]
    gold: npt.NDArray[np.float64]


def read_pairs(path: Path) -> Pairs:
    """`score<TAB>sentence1<TAB>sentence2`, no header, no quoting."""
    rows, gold = [], []
    for number, line in enumerate(read_lines(path), 1):
        row = line.split("\t")
        if row == [""]:
            continue
        if len(row) != 3:
            raise InvalidInput(f"{path}, line {number}: expected score, sentence, sentence, separated by tabs")
        try:
            gold.append(float(row[0]))
        except ValueError:
            raise InvalidInput(f"{path}, line {number}: the score {row[0][:20]!r} is no number") from None
        rows.append(row)
    return Pairs([r[1] for r in rows], [r[2] for r in rows], np.array(gold))


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
