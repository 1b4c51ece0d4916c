"""`isosim similarity`: score sentence pairs of a file or a pipe, in order, while more input arrives."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import typer

from isosim.commands.client import asking, pinned
from isosim.commands.shared import AsJson
from isosim.commands.terminal import bar, dumped, remark, tabbed
from isosim.encoders.texts import grouped
from isosim.errors import Conflict, EmptyInput, InvalidInput
from isosim.jobs.tables import kind_of_name
from isosim.jobs.text_lines import STDIN, TextLines, opened
from isosim.settings import Settings
from isosim_client import Client, Similarity

T = TypeVar("T")
Row = dict[str, Any]

PIECE = 256  # maximum number of pairs or texts in a request; servers accept 512 pairs by default
PIECE_CHARACTERS = 400_000  # maximum, unless the first entry has more: 1.6 MB in UTF-8; servers accept 2 MB by default


class Pair(NamedTuple):
    line: int  # line number in the input, from 1
    a: str
    b: str


@asking
def similarity(
    client: Client,
    file: Annotated[
        Path, typer.Argument(help="lines of sentence, tab, sentence; - reads standard input", show_default=False)
    ] = STDIN,
    domain: Annotated[str, typer.Option(help="name, name@3 or name@previous")] = "default",
    threshold: Annotated[
        str | None,
        typer.Option(help="print only pairs that reach this similarity, or the threshold saved under this name"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score sentence pairs.

    Prints a line for each pair, with tabs between similarity, percentile, probability (empty if there is none) and the
    sentences. With --json, prints a JSON object for each pair, with `extrapolated` for a percentile that the domain has
    too few random pairs to measure. Pairs are printed in the order of the input, which may have any length.

    The exit code is 0 even if no pair reaches the threshold, and 1 only after an error.
    """
    least, name = number_or_name(threshold)
    if kind_of_name(file.name) not in (None, "text", "tsv"):
        raise InvalidInput(
            f"{file} is a table; this command reads sentence, tab, sentence in each line. To score pairs of its "
            f"columns: isosim bulk score {file} OUTPUT --columns A B (convert a workbook first: isosim inspect FILE "
            "--csv FILE.csv)"
        )
    if file == STDIN and sys.stdin.isatty():
        remark("isosim: reading sentence, tab, sentence in each line; Ctrl-D ends the input")
    version = pinned(client, domain)
    with opened(file, Settings().max_characters) as lines, bar("scoring", wanted=not sys.stdout.isatty()) as progress:
        answer, unreadable = None, 0
        for pairs in pieces_as_they_come(pairs_of(lines)):
            first, asked = answer is None, [(pair.a, pair.b) for pair in pairs]
            answer = client.similarity(asked, domain=str(version), threshold=name)
            if name is not None and answer.match is None:
                raise Conflict("; ".join(notice for notice in answer.notices if notice.startswith("threshold_")))
            for notice in answer.notices if first else ():
                remark(f"isosim: {version}: {notice}")
            source = {name: getattr(answer, name) for name in ("domain", "version", "method", "encoder")}
            rows = scored(pairs, answer)
            passing = answer.match or [least is None or row["similarity"] >= least for row in rows]
            for row, passes in zip(rows, passing, strict=True):
                unreadable += is_unreadable(row)
                if passes and not (threshold is not None and is_unreadable(row)):
                    print(dumped({**row, **source}).decode() if as_json else tab_line(row))
            sys.stdout.flush()
            progress(f"{lines.number:,} lines", lines.share)
    if answer is None:
        raise EmptyInput(f"{lines.name} is empty")
    if unreadable:
        remark(
            f"isosim: {unreadable:,} pairs are unreadable (the encoder knows too few words of a text, or cannot see "
            "where the two differ): their similarity is meaningless, their percentile is 0, and they never match"
        )


def number_or_name(threshold: str | None) -> tuple[float | None, str | None]:
    """A similarity, or the name of a saved threshold."""
    try:
        return None if threshold is None else float(threshold), None
    except ValueError:
        return None, threshold


def pairs_of(lines: TextLines) -> Iterator[list[Pair]]:
    """Yields a list of pairs for each block of lines in the form sentence, tab, sentence. Skips blank lines.

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
            where = f"{lines.name}, line {number}"
            if len(cells) != 2:
                raise InvalidInput(f"{where}: {len(cells) - 1} tabs; expected sentence, tab, sentence")
            if not all(map(str.strip, cells)):
                raise InvalidInput(f"{where}: one sentence of the pair is empty")
            pairs.append(Pair(number, *cells))
        yield pairs


def pieces_as_they_come(blocks: Iterable[list[Pair]]) -> Iterator[list[Pair]]:
    """Splits blocks into pieces that one request may have; never waits for more input to fill a piece."""
    for block in blocks:
        yield from pieces(block, lambda pair: pair.a + pair.b)


def pieces(entries: Iterable[T], text: Callable[[T], str]) -> Iterator[list[T]]:
    """Splits entries into lists of at most PIECE entries and PIECE_CHARACTERS characters. `text`: text of an entry."""
    return grouped(entries, lambda entry: len(text(entry)), PIECE, PIECE_CHARACTERS)


def scored(pairs: Sequence[Pair], answer: Similarity) -> list[Row]:
    """Each pair with its scores and flags. Similarities are float32, in which they were computed."""
    absent = (None,) * len(pairs)
    columns: dict[str, Any] = {
        "cosine": np.array(answer.cosine, np.float32),
        "similarity": np.array(answer.similarity, np.float32),
        "percentile": answer.percentile or absent,
        "extrapolated": answer.extrapolated or absent,
        "probability": answer.probability or absent,
        "flags": [{"a": flags.a, "b": flags.b} for flags in answer.flags],
    }
    values = zip(*columns.values(), strict=True)
    return [pair._asdict() | dict(zip(columns, own, strict=True)) for pair, own in zip(pairs, values, strict=True)]


def tab_line(row: Row) -> str:
    """A line of TSV: similarity, percentile, probability, sentences; missing values are empty.

    Control characters become spaces, so that a file cannot control the terminal.
    """
    cells = ["" if row[name] is None else str(row[name]) for name in ("similarity", "percentile", "probability")]
    cells += [row["a"], row["b"]]
    return tabbed("".join(letter if letter.isprintable() else " " for letter in cell) for cell in cells)


def is_unreadable(row: Row) -> bool:
    """Whether a sentence of the pair has no token of the encoder's vocabulary, so that its scores are meaningless."""
    return any("unreadable" in flags for flags in row["flags"].values())
