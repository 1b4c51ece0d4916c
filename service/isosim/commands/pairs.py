"""Reads sentence pairs from files and pipes, scores them and writes them in order, while more input arrives."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from isosim.commands.terminal import dumped, tabbed
from isosim.encoders.texts import grouped
from isosim.errors import InvalidInput
from isosim.jobs.text_lines import TextLines
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


def pieces(entries: Iterable[T], text: Callable[[T], str]) -> Iterator[list[T]]:
    """Splits entries into lists of at most PIECE entries and PIECE_CHARACTERS characters. `text`: text of an entry."""
    return grouped(entries, lambda entry: len(text(entry)), PIECE, PIECE_CHARACTERS)


Row = dict[str, Any]


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


def json_line(row: Row, source: Mapping[str, Any]) -> str:
    """A JSON object of a pair, with the version that scored it."""
    return dumped({**row, **source}).decode()


def tab_line(row: Row, *, both: bool, marked: bool) -> str:
    """A line of TSV: similarity, percentile, probability, mark, sentences; missing values are empty.

    Control characters become spaces, so that a file cannot control the terminal.

    Args:
        both: False: the second sentence is left out, because it is the same in all rows.
        marked: whether to write 1 for a pair that matches, and 0 for one that does not.
    """
    cells = ["" if row[name] is None else str(row[name]) for name in ("similarity", "percentile", "probability")]
    cells += [str(int(row["match"]))] if marked else []
    cells += [row[side] for side in ("a", "b")[: 1 + both]]
    return tabbed("".join(letter if letter.isprintable() else " " for letter in cell) for cell in cells)


def is_unreadable(row: Row) -> bool:
    """Whether a sentence of the pair has no token of the encoder's vocabulary, so that its scores are meaningless."""
    return any("unreadable" in flags for flags in row["flags"].values())


def ranked(row: Row) -> tuple[bool, float, int]:
    """Sort key: most similar first, unreadable pairs last, ties in the order of the input."""
    return is_unreadable(row), -float(np.float32(row["similarity"])), row["line"]
