"""Reads sentence pairs from files and pipes, scores them and writes them in order, while more input arrives."""

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from isosim.commands.terminal import dumped, tabbed
from isosim.errors import InvalidInput
from isosim.jobs.text_lines import TextLines
from isosim.scoring.advice import rarity
from isosim_client import Similarity

T = TypeVar("T")


class Pair(NamedTuple):
    line: int  # line number in the input, from 1
    a: str
    b: str


def tab_separated(lines: TextLines) -> Iterator[list[Pair]]:
    """Yields lists of pairs, one pair for each line in the form sentence, tab, sentence. Skips blank lines.

    Raises:
        InvalidInput: a line does not hold two sentences.
    """
    number = 0
    for block in lines.blocks():
        pairs = []
        for number, line in enumerate(block, number + 1):  # noqa: B020 - continues counting over blocks
            cells = line.split("\t")
            if not line.strip():
                continue
            if len(cells) != 2:
                raise InvalidInput(
                    f"{lines.name}, line {number}: {len(cells) - 1} tabs; expected sentence, tab, sentence"
                )
            pairs.append(checked(Pair(number, *cells), lines.name))
        yield pairs


def against(lines: TextLines, sentence: str) -> Iterator[list[Pair]]:
    """Pairs each line with `sentence`, the second text of every pair; blank lines are skipped."""
    number = 0
    for block in lines.blocks():
        yield [Pair(number + at, line, sentence) for at, line in enumerate(block, 1) if line.strip()]
        number += len(block)


def aligned(left: TextLines, right: TextLines) -> Iterator[list[Pair]]:
    """Pairs line i of one text with line i of the other; lines that are blank in both are skipped.

    Raises:
        InvalidInput: one text has more lines, or a line is blank in one text only.
    """
    sources = (left.blocks(), right.blocks())
    a: list[str] = []
    b: list[str] = []
    number = 0
    while (a := a or next(sources[0], [])) and (b := b or next(sources[1], [])):
        both = zip(a, b, strict=False)
        pairs = [Pair(number + at, *sides) for at, sides in enumerate(both, 1)]
        number += len(pairs)
        a, b = a[len(pairs) :], b[len(pairs) :]
        names = f"{left.name} and {right.name}"
        yield [checked(pair, names) for pair in pairs if pair.a.strip() or pair.b.strip()]
    b = b or next(sources[1], [])
    if a or b:
        longer, shorter = (left, right) if a else (right, left)
        raise InvalidInput(f"{longer.name} has more lines than {shorter.name}, which ends after line {number}")


def checked(pair: Pair, where: str) -> Pair:
    if not pair.a.strip() or not pair.b.strip():
        raise InvalidInput(f"{where}, line {pair.line}: one sentence of the pair is empty")
    return pair


def chunked(blocks: Iterable[list[Pair]]) -> Iterator[list[Pair]]:
    """Splits blocks into pieces that one request may have; never waits for more input to fill a piece."""
    for block in blocks:
        yield from pieces(block, lambda pair: f"{pair.a}{pair.b}")


PIECE = 256  # maximum number of pairs or texts in a request; servers accept 512 pairs by default
PIECE_CHARACTERS = 400_000  # maximum, unless the first entry has more: 1.6 MB in UTF-8; servers accept 2 MB by default


def pieces(block: Sequence[T], text: Callable[[T], str]) -> Iterator[list[T]]:
    """Splits entries into lists of at most PIECE entries and PIECE_CHARACTERS characters. `text`: text of an entry."""
    piece: list[T] = []
    size = 0
    for entry in block:
        length = len(text(entry))
        if piece and (len(piece) == PIECE or size + length > PIECE_CHARACTERS):
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += length
    if piece:
        yield piece


Row = dict[str, Any]
NARROW = 12  # characters; minimum width of the column of a sentence on a terminal


def scored(pairs: Sequence[Pair], answer: Similarity) -> list[Row]:
    """Each pair with its scores and flags. Similarities are float32, in which they were computed."""
    absent = (None,) * len(pairs)
    columns = (
        np.array(answer.cosine, np.float32),
        np.array(answer.similarity, np.float32),
        answer.percentile or absent,
        answer.extrapolated or absent,
        answer.probability or absent,
    )
    return [
        {
            **pair._asdict(),
            "cosine": cosine,
            "similarity": similarity,
            "percentile": percentile,
            "extrapolated": extrapolated,
            "probability": probability,
            "flags": {"a": flags.a, "b": flags.b},
        }
        for pair, cosine, similarity, percentile, extrapolated, probability, flags in zip(
            pairs, *columns, answer.flags, strict=True
        )
    ]


@dataclass(frozen=True)
class Layout:
    """The columns that are printed for each pair."""

    both: bool  # print both sentences; False: only the first, because the second is the same in all rows
    marked: bool  # mark the rows that match; True if the other rows are printed too
    probability: bool  # print probabilities
    pairs: int | None  # number of random pairs behind the percentiles; None if the domain has no reference

    @property
    def percentile_width(self) -> int:
        """Width of the percentile column. Percentile 1.0 has the longest text, like `fewer than 1 in 499,500`."""
        return 10 if self.pairs is None else len(rarity(1.0, self.pairs))


class Writer(Protocol):
    def write(self, rows: Sequence[Row]) -> None: ...


class JsonWriter:
    """Writes a JSON object for each pair, with the version that scored it."""

    def __init__(self, answer: Similarity) -> None:
        self.source = {name: getattr(answer, name) for name in ("domain", "version", "method", "encoder")}

    def write(self, rows: Sequence[Row]) -> None:
        print("".join(dumped({**row, **self.source}).decode() + "\n" for row in rows), end="", flush=True)


class TabWriter:
    """Writes TSV: similarity, percentile, probability, mark (if all rows are printed), sentences. Missing values are
    empty."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, rows: Sequence[Row]) -> None:
        print("".join(tabbed(self._cells(row)) + "\n" for row in rows), end="", flush=True)

    def _cells(self, row: Row) -> list[str]:
        numbers = [row[name] for name in ("similarity", "percentile", "probability")]
        cells = ["" if number is None else str(number) for number in numbers]
        if self.layout.marked:
            cells.append(str(int(row["match"])))
        return [*cells, row["a"], *([row["b"]] if self.layout.both else [])]


class ColumnWriter:
    """Writes columns that fill the terminal's width. The first block of rows determines the widths, so that rows can be
    printed as they arrive."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.widths: list[int] = []

    def write(self, rows: Sequence[Row]) -> None:
        from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - some letters are two columns wide

        if not rows:
            return
        texts = [[printable(row[side]) for side in ("a", "b")[: 1 + self.layout.both]] for row in rows]
        head = self._head()
        if not self.widths:
            wanted = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
            self.widths = divided(wanted, shutil.get_terminal_size().columns - len(head) - 2 * len(wanted))
            print(head + "".join(f"  {name:{width}}" for name, width in zip("ab", self.widths, strict=False)))
        for row, sentences in zip(rows, texts, strict=True):
            shown = (
                set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
                for text, width in zip(sentences, self.widths, strict=True)
            )
            print((self._numbers(row) + "".join(f"  {text}" for text in shown)).rstrip())
        sys.stdout.flush()

    def _head(self) -> str:
        mark = "   " if self.layout.marked else ""
        return f"{mark}similarity  {'percentile':>{self.layout.percentile_width}}" + (
            "  probability" if self.layout.probability else ""
        )

    def _numbers(self, row: Row) -> str:
        mark = "" if not self.layout.marked else "✓  " if row["match"] else "   "
        line = f"{mark}{row['similarity']:10.4f}  {self._percentile(row):>{self.layout.percentile_width}}"
        if self.layout.probability:
            line += f"  {'–' if row['probability'] is None else format(row['probability'], '.4f'):>11}"
        return line

    def _percentile(self, row: Row) -> str:
        if is_unreadable(row):
            return "unreadable"
        if row["percentile"] is None or self.layout.pairs is None:
            return "–"
        if row["extrapolated"] and row["percentile"] > 0.5:
            return rarity(row["percentile"], self.layout.pairs)
        return f"{row['percentile']:.7f}"


def divided(wanted: Sequence[int], room: int) -> list[int]:
    """Divides the width `room` among columns. If the wanted widths do not fit, narrow columns get their wanted width,
    and wide columns get equal shares of the rest. Each width is at least NARROW."""
    widths = list(wanted)
    share = room // len(wanted)
    if sum(wanted) > room:
        short = [width for width in wanted if width <= share]
        rest = (room - sum(short)) // max(1, len(wanted) - len(short))
        widths = [width if width <= share else rest for width in wanted]
    return [max(NARROW, width) for width in widths]


def printable(text: str) -> str:
    """Replaces control characters by spaces, so that a file cannot control the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def is_unreadable(row: Row) -> bool:
    """Whether a sentence of the pair has no token of the encoder's vocabulary, so that its scores are meaningless."""
    return any("unreadable" in flags for flags in row["flags"].values())


def ranked(row: Row) -> tuple[bool, float, int]:
    """Sort key: most similar first, unreadable pairs last, ties in the order of the input."""
    return is_unreadable(row), -float(np.float32(row["similarity"])), row["line"]
