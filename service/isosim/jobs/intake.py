"""Checks and counts the entries of posted input, and writes them to a spool.

Whatever was posted (JSON, text, lines of JSON, a table, vectors) becomes the same entries: sentences, labelled pairs
and vectors. `entries_of` reads them from a file, `Intake` checks them, and the job reads what `Intake` has written
(`posted.py`).
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from isosim.errors import EmptyInput, InvalidInput
from isosim.jobs.job import LabelledPair
from isosim.jobs.labels import parse_pairs
from isosim.jobs.posted import is_row, path_of, write
from isosim.jobs.requirements import STEADY_FLOW, LabelSummary, check_sentences
from isosim.jobs.tables import Table, cell_text
from isosim.jobs.text_lines import check_decoded
from isosim.scoring.method import Method

if TYPE_CHECKING:
    from isosim.arrays import Vectors
    from isosim.encoders.store import EncoderArtifact

# Maximum bytes of memory to read a file that is held in memory as a whole. A workbook of 1,000,000 rows and five
# columns needed 990 MB.
MEMORY = 3 << 29
COUNTED = 200_000  # distinct entries that are counted; no method needs as many
PLACES = 5  # maximum number of places of long sentences that a message names
ENTRY = 'expected "a sentence", {"text": "a sentence"} or {"a": "…", "b": "…", "label": 1}'
VECTOR = 'expected {"vector": […]}, {"vector": […], "text": "…"} or {"a": …, "b": …, "label": 1}'
PAIR = 'expected a labelled pair, {"a": "…", "b": "…", "label": 1}'
NO_VECTORS = "a text is wanted; only encoders added with `isosim encoder add --dimensions` accept vectors"


@dataclass(frozen=True)
class Limits:
    """Limits for what is posted."""

    characters: int  # maximum characters of a sentence
    sentences: int  # maximum number of sentences, of vectors or of rows
    size: int  # maximum bytes of a file that the child process may write
    memory: int = MEMORY  # maximum bytes of memory of the child process
    labels: int = 100_000  # maximum number of labelled pairs
    less: str = "send a random sample of 20,000"  # what to do about too many sentences


@dataclass(frozen=True)
class Brought:
    """Vectors that users bring: their dimension, and whether they must have length 1."""

    dim: int
    unit: bool


def brought_by(artifact: "EncoderArtifact") -> Brought | None:
    """The vectors that users of the encoder bring; None if it computes them from text."""
    return Brought(artifact.spec.dim, artifact.unit_vectors) if artifact.kind == "vectors" else None


class Item(NamedTuple):
    """A vector (D,) and its text, if it has one."""

    vector: "Vectors"
    text: str | None


Entry = str | LabelledPair | Item


def entries_of(
    table: Table, column: str | None, brought: Brought | None, *, labels: bool
) -> Iterator[tuple[int, Entry]]:
    """The entries of a file and their numbers. `labels`: only labelled pairs are accepted.

    Raises:
        InvalidInput: a line is not an entry, or it is not clear which column holds the sentences.
    """
    if table.kind != "ndjson":
        header = [] if table.header is None else [table.header]
        yield from parse_pairs([*header, *table.filled()]) if labels else table.sentences(table.index(column))
        return
    name = None if column is None else table.columns[table.index(column)]
    for number, value in table.rows:
        try:
            yield number, entry_of(value, table, name, brought, labels=labels)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from None


def entry_of(value: Any, table: Table, column: str | None, brought: Brought | None, *, labels: bool) -> Entry:
    """The entry in an object of JSON. Raises InvalidInput if it is none, without the line's number."""
    if {"label", "a", "b"} <= value.keys() - {column}:
        return pair_of(value, brought, rows=not labels)
    if labels:
        raise InvalidInput(PAIR)
    if brought is not None:
        return item_of(value, brought)
    if column is not None:
        return cell_text(value.get(column))
    if "text" not in value and "vector" in value:
        raise InvalidInput(NO_VECTORS)
    named = "text" in value or "text" in table.columns
    text = value.get("text" if named else table.columns[table.index(None)])
    if not isinstance(text, str):
        raise InvalidInput(ENTRY)
    return text


def pair_of(value: dict[str, Any], brought: Brought | None, *, rows: bool) -> LabelledPair:
    """A labelled pair. `rows`: a vector may be given by the number (from 0) of a posted row."""
    a, b = (side_of(value[name], name, brought, rows=rows) for name in ("a", "b"))
    return LabelledPair(a, b, number_of(value["label"], "label"), number_of(value.get("weight", 1), "weight"))


def side_of(value: Any, name: str, brought: Brought | None, *, rows: bool) -> str:
    """A side of a labelled pair: a text, or a vector as base64, or a row's number. Raises InvalidInput for others."""
    if brought is not None:
        if rows and is_row(str(value)):
            return str(value)
        from isosim.encoders.brought import brought_vector, encoded  # noqa: PLC0415 - numpy takes 0.12 s

        return encoded(brought_vector(value, f"the vector {name!r}", brought.dim, unit=brought.unit))
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: {NO_VECTORS if isinstance(value, list) else 'expected a text'}")
    return value


def number_of(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{name}: expected a number")
    return number


def item_of(value: dict[str, Any], brought: Brought) -> Item:
    if "vector" not in value or value.keys() - {"vector", "text"}:
        raise InvalidInput(VECTOR)
    text = value.get("text")
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise InvalidInput("the text is empty, or not a string")
    from isosim.encoders.brought import brought_vector  # noqa: PLC0415 - numpy takes 0.12 s

    return Item(brought_vector(value["vector"], "the vector", brought.dim, unit=brought.unit), text)


class Intake:
    """Checks and counts entries, and writes them. Not thread-safe.

    Args:
        lines: file for sentences and labelled pairs, as lines of JSON; None: entries are only counted.
        vectors: file for vectors, as `.npy`.
        brought: whether labelled pairs are of vectors: base64, or numbers of rows.
        kind: what labels mean (LABEL_KINDS).
        place: the words for the place of an entry, for example "line 7".
    """

    def __init__(
        self,
        limits: Limits,
        lines: BinaryIO | None,
        vectors: BinaryIO | None = None,
        *,
        brought: bool = False,
        kind: str = "matches",
        place: Callable[[Any], str] = "line {}".format,
    ) -> None:
        self.limits, self.lines, self.vectors, self.brought, self.place = limits, lines, vectors, brought, place
        self.sentences = self.labels = self.empty = self.longest = 0
        self.distinct: set[int] = set()  # hashes
        self.too_long = 0
        self.too_long_places: list[Any] = []
        self._summary = LabelSummary(kind)
        self._dim = 0
        self._texts = False  # whether the vectors have texts
        self._highest: tuple[int, str] = (-1, "")  # highest row that a labelled pair names, and the pair's place

    def take(self, entries: Iterable[tuple[Any, Entry]]) -> None:
        """Takes entries with their places.

        Raises:
            InvalidInput, EmptyInput: an entry cannot be used, or there are too many; the message names the place.
        """
        for where, entry in entries:
            if isinstance(entry, str):
                self._take_sentence(entry.strip(), where)
            elif isinstance(entry, LabelledPair):
                self._take_pair(entry._replace(a=entry.a.strip(), b=entry.b.strip()), self.place(where))
            else:
                self._take_item(entry, self.place(where))

    def _take_sentence(self, text: str, where: Any) -> None:
        self.longest = max(self.longest, len(text))
        if not text:
            self.empty += 1
        elif len(text) > self.limits.characters:
            self.too_long += 1
            self.too_long_places += [where] if len(self.too_long_places) < PLACES else []
        else:
            check_decoded(text, self.place(where))
            self._count(hash(text), "sentences")
            self._write(text)

    def _take_pair(self, pair: LabelledPair, at: str) -> None:
        for text in pair[:2]:
            if not text:
                raise EmptyInput(f"{at} has an empty sentence")
            if self.brought and is_row(text):
                self._highest = max(self._highest, (int(text), at))
            elif not self.brought:
                self._check_text(text, at)
        self._summary.add(pair, at)
        self.labels += 1
        if self.labels > self.limits.labels:
            raise InvalidInput(f"more than {self.limits.labels} labelled pairs were posted")
        self._write(pair)

    def _take_item(self, item: Item, at: str) -> None:
        from isosim.jobs.vector_files import hash_of, header_of  # noqa: PLC0415 - numpy takes 0.12 s

        if not self.sentences:
            self._texts, self._dim = item.text is not None, len(item.vector)
            self._vectors().write(header_of(0, self._dim))
        if (item.text is not None) != self._texts:
            raise InvalidInput(f"{at}: give a text to all vectors or to none, as with the first")
        self._count(hash_of(item.vector), "vectors")
        self._vectors().write(item.vector.astype("<f4").tobytes())
        if item.text is not None:
            self._check_text(item.text, at)
            self._write(item.text.strip())

    def _check_text(self, text: str, at: str) -> None:
        if len(text) > self.limits.characters:
            raise InvalidInput(f"{at} has {len(text)} characters, at most {self.limits.characters} are taken")
        check_decoded(text, at)

    def take_npy(self, brought: Brought) -> None:
        """Takes a posted `.npy`, which is the file of vectors itself.

        Raises:
            InvalidInput: the file does not match its header, or a row is not a valid vector; the message names the row.
            EmptyInput: there is no vector.
        """
        from isosim.jobs.vector_files import NpyFile, checked_blocks, hash_of  # noqa: PLC0415 - numpy takes 0.12 s

        posted = self._vectors()
        if not posted.seek(0, os.SEEK_END):
            raise EmptyInput("no vector was posted")
        file = NpyFile(path_of(posted), "the posted .npy")
        for block in checked_blocks(file, brought.dim, unit=brought.unit):
            for row in block:
                self._count(hash_of(row), "vectors")

    def _vectors(self) -> BinaryIO:
        if self.vectors is None:
            raise InvalidInput(NO_VECTORS)
        return self.vectors

    def _count(self, hashed: int, what: str) -> None:
        self.sentences += 1
        if self.sentences > self.limits.sentences:
            raise InvalidInput(f"more than {self.limits.sentences:,} {what} were posted; {self.limits.less}")
        if self.lines is None or len(self.distinct) < COUNTED:
            self.distinct.add(hashed)

    def _write(self, entry: str | LabelledPair) -> None:
        if self.lines is not None:
            write(self.lines, entry)

    def close(self, *, labels: bool = False) -> None:
        """Ends the intake. `labels`: only labelled pairs were wanted.

        Raises:
            InvalidInput, EmptyInput: there is no entry that can be used, or no probability can be fitted to the labels.
        """
        if self._dim:
            from isosim.jobs.vector_files import header_of  # noqa: PLC0415 - numpy takes 0.12 s

            self._vectors().seek(0)
            self._vectors().write(header_of(self.sentences, self._dim))
        row, at = self._highest
        if row >= self.sentences and not labels:
            raise InvalidInput(f"{at}: there is no row {row}; the posted vectors are rows 0 to {self.sentences - 1}")
        if not self.sentences and not labels:
            if self.too_long:
                raise InvalidInput(f"all sentences are {self._left_out}")
            raise EmptyInput("no vector was posted" if self.brought else "texts: no sentence was posted")
        if self.labels or labels:
            self._summary.check()
        if self.lines is not None:
            self.lines.flush()

    @property
    def _left_out(self) -> str:
        """How many texts are too long, and the first of their places."""
        more = ", …" * (self.too_long > len(self.too_long_places))
        places = f"{self.too_long:,} ({', '.join(map(self.place, self.too_long_places))}{more})"
        return f"longer than {self.limits.characters:,} characters: {places}"

    @property
    def facts(self) -> dict[str, Any]:
        """Counts of what was taken, as /inspect and `check_enough` use them."""
        return {
            "sentences": self.sentences,
            "labels": self.labels,
            "distinct": len(self.distinct),
            "empty": self.empty,
            "too_long": self.too_long,
            "too_long_rows": self.too_long_places,
            "longest": self.longest,
            "notices": [f"sentences left out because they are {self._left_out}"] if self.too_long else [],
        }


def check_enough(facts: dict[str, Any], method: str, dim: int, *, brought: bool = False) -> list[str]:
    """Checks that what was taken is enough to fit vectors of dimension `dim`, and returns notices for the job.

    Raises:
        InvalidInput: too few distinct sentences; the message says how many are needed.
    """
    distinct, notices = facts["distinct"], list(facts["notices"])
    try:
        check_sentences(method, dim, distinct, sent=facts["sentences"], brought=brought)
    except InvalidInput as error:
        raise InvalidInput("; ".join([str(error), *notices])) from None
    if Method.parse(method).is_flow and distinct < STEADY_FLOW:
        what = "vectors" if brought else "sentences"
        notices.append(
            f"a flow fitted to fewer than {STEADY_FLOW} distinct {what} is unstable; there are only {distinct}"
        )
    return notices
