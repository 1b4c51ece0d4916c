"""Reads training examples from text, TSV, CSV and JSONL; errors name the file and the line."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.text_lines import numbered_lines, read_lines, table_lines

CLASSES = ("entailment", "neutral", "contradiction")  # labels of natural language inference; numbered in this order
OTHER_NAMES = {  # other names that a file may use for our columns
    "score": ("grade", "similarity"),
    "sentence1": ("s1", "sentence_1", "text1"),
    "sentence2": ("s2", "sentence_2", "text2"),
    "label": ("gold_label", "class"),
    "premise": ("sentence1", "s1"),
    "hypothesis": ("sentence2", "s2"),
    "anchor": ("sent0", "premise", "query"),
    "positive": ("sent1", "entailment"),
    "negative": ("hard_neg", "contradiction"),
}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Examples:
    """Columns of equal length: sentences in the order that the loss expects, and labels if the loss needs them."""

    sentences: dict[str, list[str]]
    labels: list[float] | list[int] | None = None
    classes: int = 0
    grades: tuple[float, float] | None = None  # (grade that becomes cosine 0, grade that becomes cosine 1)

    def __len__(self) -> int:
        return len(next(iter(self.sentences.values())))


def read_sentences(path: Path) -> Examples:
    """Reads one sentence per line. Anchor and positive are the same sentence (Gao et al., 2021, section 3).

    The vectors of anchor and positive differ only by dropout. Duplicates are removed, because the second of two equal
    sentences in a batch would be a negative for the first.
    """
    distinct = list(dict.fromkeys(line.strip() for line in read_lines(path) if line.strip()))
    return Examples({"anchor": distinct, "positive": distinct})


def without_words(examples: Examples, share: float, seed: int) -> Examples:
    """Deletes each word of each sentence with probability `share`, but keeps at least one word per sentence.

    Anchor and positive are two copies of one sentence. Without deletions, the model could recognize a positive by its
    equal length. Gao et al., 2021, compare word deletion with dropout (table 1, "word deletion").
    """
    rng = np.random.default_rng(seed)

    def thin(sentence: str) -> str:
        words = sentence.split()
        kept = [word for word, draw in zip(words, rng.random(len(words)), strict=True) if draw >= share]
        return " ".join(kept or [words[int(rng.integers(len(words)))]])

    columns = {name: [thin(sentence) for sentence in column] for name, column in examples.sentences.items()}
    return dataclasses.replace(examples, sentences=columns)


def read_triplets(path: Path) -> Examples:
    """Reads anchor, positive, negative (in SimCSE: premise, entailment, contradiction)."""
    names = ("anchor", "positive", "negative")
    rows = [row for _, row in rows_of(path, names)]
    return Examples({name: [row[at] for row in rows] for at, name in enumerate(names)})


def read_graded(path: Path, bounds: tuple[float, float] | None = None) -> Examples:
    """Reads lines of score, sentence, sentence, and scales the scores linearly to 0–1.

    `bounds`: the scores that become 0 and 1. If None, these are the smallest and the largest score of the file.

    Raises:
        InvalidInput: a score is not a number or outside the bounds, or all scores are equal.
    """
    rows, scores = [], []
    for number, row in rows_of(path, ("score", "sentence1", "sentence2")):
        score = float_of(row[0])
        if score is None:
            raise InvalidInput(f"{path}, line {number}: the score {row[0][:20]!r} is not a number")
        if bounds is not None and not bounds[0] <= score <= bounds[1]:
            raise InvalidInput(
                f"{path}, line {number}: the score {score:g} is not within {bounds[0]:g} to {bounds[1]:g}"
            )
        rows.append(row)
        scores.append(score)
    low, high = bounds or (min(scores), max(scores))
    if not high > low:
        raise InvalidInput(f"{path}: all scores are {low:g}; training needs different ones")
    sides = {"sentence1": [row[1] for row in rows], "sentence2": [row[2] for row in rows]}
    return Examples(sides, [(score - low) / (high - low) for score in scores], grades=(low, high))


def read_classes(path: Path) -> Examples:
    """Reads label, premise, hypothesis; labels are entailment, neutral and contradiction, or integers from 0.

    Raises:
        InvalidInput: a label is unknown, words and integers are mixed, an integer is missing, or all labels are equal.
    """
    rows, labels, words = [], [], None
    for number, row in rows_of(path, ("label", "premise", "hypothesis")):
        label = row[0].strip().lower()
        if label not in CLASSES and not label.isdecimal():
            raise InvalidInput(
                f"{path}, line {number}: the label {row[0][:20]!r} is neither one of {', '.join(CLASSES)} nor a number"
            )
        if words is None:
            words = label in CLASSES
        if words is not (label in CLASSES):
            raise InvalidInput(
                f"{path}, line {number}: the label {label!r} does not fit the earlier labels; "
                "all labels must be words, or all numbers"
            )
        rows.append(row)
        labels.append(CLASSES.index(label) if words else int(label))
    seen = set(labels)
    classes = len(CLASSES) if words else max(seen) + 1
    if len(seen) < 2:
        raise InvalidInput(f"{path}: all labels are the same; training needs at least two classes")
    if not words and len(seen) < classes:
        missing = next(label for label in range(classes) if label not in seen)
        raise InvalidInput(
            f"{path}: labels go up to {classes - 1}, but {missing} has no example; number them from 0 without gaps"
        )
    sides = {"premise": [row[1] for row in rows], "hypothesis": [row[2] for row in rows]}
    return Examples(sides, labels, classes=classes)


def float_of(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the line number and the cells of each line, in the order of `columns`. Skips blank lines.

    JSONL records must name the columns. TSV and CSV files may name the columns in the first line. If they do not, they
    must have exactly these columns in this order. TSV has no quoting, as in the STS sets.

    Raises:
        InvalidInput: a JSONL record is malformed or lacks a column, a line has too many or too few cells, or a cell is
            empty.
        EmptyInput: there are no examples.
    """
    kind = path.suffix.lower()
    rows = json_rows(path, columns) if kind in JSON_LINES else table_rows(path, columns, quoted=kind == ".csv")
    number = 0
    for number, cells in rows:
        for name, cell in zip(columns, cells, strict=True):
            if not cell.strip():
                raise InvalidInput(f"{path}, line {number}: the {name} is empty")
        yield number, cells
    if not number:
        raise EmptyInput(f"{path} has no examples")


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{path}, line {number}: not valid JSON ({error.msg}, column {error.colno})") from None
        if not isinstance(record, dict):
            raise InvalidInput(f"{path}, line {number}: expected an object with {', '.join(columns)}")
        yield number, tuple(json_cell(path, number, record, name) for name in columns)


def json_cell(path: Path, number: int, record: dict[str, Any], name: str) -> str:
    key = next((key for key in (name, *OTHER_NAMES[name]) if key in record), None)
    if key is None:
        found = ", ".join(map(repr, record)) or "no names"
        raise InvalidInput(f"{path}, line {number}: {name!r} is missing; found {found}")
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"{path}, line {number}: the value of {key!r} is neither a text nor a number")
    return str(value)


def table_rows(path: Path, columns: Sequence[str], *, quoted: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    what = "commas" if quoted else "tabs"
    pick: Callable[[list[str]], tuple[str, ...]] | None = None
    width = len(columns)
    for number, cells in table_lines(path):
        if pick is None:
            places = header(cells, columns)
            pick, width = picker(places or range(len(columns))), len(cells) if places else len(columns)
            if places:
                continue
        if len(cells) != width:
            expected = ", ".join(columns) if width == len(columns) else f"{width} columns as in the first line"
            raise InvalidInput(
                f"{path}, line {number}: expected {expected}, separated by {what}; found {len(cells)} columns"
            )
        yield number, pick(cells)


def header(cells: Sequence[str], columns: Sequence[str]) -> list[int] | None:
    """Positions of the columns if the first line names all of them, else None."""
    names = [cell.strip().lower() for cell in cells]
    places = []
    for column in columns:
        known = (column, *OTHER_NAMES[column])
        place = next((names.index(name) for name in known if name in names), None)
        if place is None:
            return None
        places.append(place)
    return places


def picker(places: Sequence[int]) -> Callable[[list[str]], tuple[str, ...]]:
    return lambda cells: tuple(cells[place] for place in places)
