"""Sentence pairs out of files and pipes, in order, as they come in."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from service.adapters.text_lines import TextLines
from service.core.errors import InvalidInput


class Pair(NamedTuple):
    line: int  # of the input, from 1
    a: str
    b: str


def tabbed(lines: TextLines) -> Iterator[list[Pair]]:
    """Sentence, tab, sentence in each line. Blank lines are passed over, here and below.

    Raises:
        InvalidInput: a line holds no two sentences.
    """
    number = 0
    for block in lines.blocks():
        found = []
        for number, line in enumerate(block, number + 1):  # noqa: B020 - goes on over the blocks
            cells = line.split("\t")
            if not line.strip():
                continue
            if len(cells) != 2:
                raise InvalidInput(
                    f"{lines.name}, line {number}: {len(cells) - 1} tabs; expected sentence, tab, sentence"
                )
            found.append(checked(Pair(number, *cells), lines.name))
        yield found


def against(lines: TextLines, sentence: str) -> Iterator[list[Pair]]:
    """Each line with one sentence, which is the pair's second side."""
    number = 0
    for block in lines.blocks():
        yield [Pair(number + at, line, sentence) for at, line in enumerate(block, 1) if line.strip()]
        number += len(block)


def aligned(left: TextLines, right: TextLines) -> Iterator[list[Pair]]:
    """Line i of one text with line i of the other.

    Raises:
        InvalidInput: one has more lines, or a blank one where the other has a sentence.
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


def chunked(blocks: Iterable[list[Pair]], size: int) -> Iterator[list[Pair]]:
    """At most `size` pairs at once; nothing waits for a chunk to fill."""
    for block in blocks:
        for start in range(0, len(block), size):
            yield block[start : start + size]
