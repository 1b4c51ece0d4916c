"""Reads the examples of each objective from text, TSV, CSV or JSONL.

Columns are in the order that the losses of sentence-transformers expect: sentences, then `label`.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset
from pyarrow import csv, json

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.text_lines import read_lines

CLASSES = ("entailment", "neutral", "contradiction")  # labels of natural language inference, numbered in this order


def read_sentences(path: Path, word_deletion: float = 0.0, seed: int = 0) -> Dataset:
    """Reads one sentence per line. Anchor and positive are the same sentence (Gao et al., 2021, section 3).

    The vectors of anchor and positive differ by dropout, and by the words that are deleted from each with probability
    `word_deletion` (table 1, "word deletion"). Duplicates are removed, because the second of two equal sentences in a
    batch would be a negative for the first.
    """
    distinct = list(dict.fromkeys(line.strip() for line in read_lines(path) if line.strip()))
    rng = np.random.default_rng(seed)

    def thin(sentence: str) -> str:
        words = sentence.split()
        kept = [word for word, draw in zip(words, rng.random(len(words)), strict=True) if draw >= word_deletion]
        return " ".join(kept or [words[int(rng.integers(len(words)))]])

    views = {name: [thin(one) for one in distinct] if word_deletion else distinct for name in ("anchor", "positive")}
    return Dataset.from_dict(views)


def read_triplets(path: Path) -> Dataset:
    """Reads anchor, positive, negative (in SimCSE: premise, entailment, contradiction)."""
    return Dataset.from_dict(read_columns(path, ("anchor", "positive", "negative")))


def read_graded(path: Path, bounds: tuple[float, float] | None = None) -> Dataset:
    """Reads score, sentence1, sentence2, and scales the scores linearly to labels of 0 to 1.

    `bounds`: the scores that become 0 and 1; None: the smallest and the largest score of the file.

    Raises:
        InvalidInput: a score is not a number or outside the bounds, or all scores are equal.
    """
    columns = read_columns(path, ("score", "sentence1", "sentence2"))
    scores = [float_of(text) for text in columns.pop("score")]
    low, high = bounds or (min(scores), max(scores))
    for number, score in enumerate(scores, 1):
        if not (math.isfinite(score) and low <= score <= high):
            raise InvalidInput(f"{path}, example {number}: the score must be a number within {low:g} to {high:g}")
    if not high > low:
        raise InvalidInput(f"{path}: all scores are {low:g}; training needs different ones")
    return Dataset.from_dict(columns | {"label": [(score - low) / (high - low) for score in scores]})


def float_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_classes(path: Path) -> Dataset:
    """Reads label, premise, hypothesis; labels are entailment, neutral, contradiction, or integers from 0.

    Raises:
        InvalidInput: a label is unknown, an integer below another one is missing, or all labels are equal.
    """
    columns = read_columns(path, ("label", "premise", "hypothesis"))
    labels = [label.strip().lower() for label in columns.pop("label")]
    kinds = len(set(labels))
    names = CLASSES if labels[0] in CLASSES else [str(number) for number in range(kinds)]
    for number, label in enumerate(labels, 1):
        if label not in names:
            raise InvalidInput(
                f"{path}, example {number}: the label {label[:20]!r} is unknown; all labels must be one of "
                f"{', '.join(CLASSES)}, or all must be integers from 0 without gaps"
            )
    if kinds < 2:
        raise InvalidInput(f"{path}: all labels are the same; training needs at least two classes")
    return Dataset.from_dict(columns | {"label": [names.index(label) for label in labels]})


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[str]]:
    """Reads columns of text. JSONL objects name them. The first line of CSV or TSV names them, or the file has exactly
    these columns in this order.

    Raises:
        InvalidInput: the file is malformed, lacks a column, or has an empty cell.
        EmptyInput: there are no examples.
    """
    try:
        table = json.read_json(path) if path.suffix.lower() == ".jsonl" else read_table(path, columns)
        cells = {name: table[name].cast(pa.string()).to_pylist() for name in columns}
    except (pa.ArrowException, KeyError) as error:  # KeyError: there is no such column
        raise InvalidInput(f"{path}: {error.args[0]}; expected the columns {', '.join(columns)}") from None
    if not table.num_rows:
        raise EmptyInput(f"{path} has no examples")
    for name, column in cells.items():
        for number, cell in enumerate(column, 1):
            if cell is None or not cell.strip():
                raise InvalidInput(f"{path}, example {number}: the {name} is empty")
    return cells


def read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    """Reads CSV, or TSV, which has no quoting, as in the STS sets."""
    quoted = path.suffix.lower() == ".csv"
    parse = csv.ParseOptions(
        delimiter="," if quoted else "\t", quote_char='"' if quoted else False, newlines_in_values=quoted
    )
    with csv.open_csv(path, parse_options=parse) as reader:
        named = set(columns) <= set(reader.schema.names)
    return csv.read_csv(
        path,
        csv.ReadOptions(column_names=None if named else list(columns)),
        parse,
        csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), include_columns=list(columns)),
    )
