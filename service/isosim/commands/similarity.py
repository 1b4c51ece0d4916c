"""`isosim similarity`: score sentence pairs of files and pipes."""

import heapq
import itertools
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from isosim.commands.client import Server, connected, pinned
from isosim.commands.pairs import (
    Pair,
    Row,
    against,
    aligned,
    chunked,
    is_unreadable,
    json_line,
    ranked,
    scored,
    tab_line,
    tab_separated,
)
from isosim.commands.shared import AsJson, EncoderId, Store
from isosim.commands.terminal import bar, remark
from isosim.errors import Conflict, EmptyInput, InvalidInput
from isosim.jobs.tables import kind_of_name
from isosim.jobs.text_lines import STDIN, TextLines, opened
from isosim.scoring.advice import SMALLEST_FMR, no_reference
from isosim.settings import Settings
from isosim_client import Similarity

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        help="two texts (line i of the first is compared with line i of the second), or one text with lines of "
        "sentence, tab, sentence; for standard input, give - or no file",
        show_default=False,
    ),
]


def similarity(
    files: Files = None,
    one: Annotated[
        str | None, typer.Option("--against", help="compare each line of one text with this sentence")
    ] = None,
    domain: Annotated[str, typer.Option(help="name, name@3 or name@previous")] = "default",
    top: Annotated[
        int | None, typer.Option(min=1, help="print only this number of the most similar pairs, sorted")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(help="print only pairs that reach this similarity, or the threshold saved under this name"),
    ] = None,
    fmr: Annotated[
        float | None,
        typer.Option(min=SMALLEST_FMR, max=1, help="print only pairs that match at this false-match rate"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="print all pairs, and mark those that match")] = False,
    server: Server = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Score sentence pairs.

    Prints a line for each pair, with tabs between similarity, percentile, probability (empty if there is none) and the
    sentences. With --json, prints a JSON object for each pair, with `extrapolated` for a percentile that the domain has
    too few random pairs to measure. Pairs are printed in the order of the input, which may have any length.

    With --threshold or --fmr, only pairs that match are printed. If --all is also given, all pairs are printed, and
    those that match are marked.

    The exit code is 0 even if no pair matches, and 1 only after an error. To learn whether pairs match, omit --all and
    count the printed pairs.
    """
    if threshold is not None and fmr is not None:
        raise typer.BadParameter("give one of them", param_hint="--threshold or --fmr")
    least, name = number_or_name(threshold)
    limited = threshold is not None or fmr is not None
    if every and not limited:
        raise typer.BadParameter("needs --threshold or --fmr, which decide which pairs match", param_hint="--all")
    for path in chosen(files, one):
        check_lines(path, pairs=one is None and len(files or ()) < 2)
    with ExitStack() as stack:
        texts = [stack.enter_context(opened(path, Settings().max_characters)) for path in chosen(files, one)]
        client = stack.enter_context(connected(server, model_store=model_store, encoder=encoder))
        version = pinned(client, domain)
        if fmr is not None and fmr < 1:
            client.threshold(str(version), fmr=fmr)  # raises an error if the version cannot reach the rate

        def answers() -> Iterator[tuple[list[Pair], Similarity]]:
            with bar("scoring", wanted=top is not None or not sys.stdout.isatty()) as progress:
                for pairs in chunked(pairs_of(texts, one)):
                    asked = [(pair.a, pair.b) for pair in pairs]
                    yield pairs, client.similarity(asked, domain=str(version), threshold=name, detail=True)
                    progress(f"{texts[0].number:,} lines", texts[0].share)

        every_answer = answers()
        first = next(every_answer, None)
        if first is None:
            raise EmptyInput(f"{texts[0].name} is empty")
        answer = first[1]
        if fmr is not None and answer.percentile is None:
            raise no_reference(version.domain)
        if name is not None and answer.match is None:
            raise Conflict("; ".join(notice for notice in answer.notices if notice.startswith("threshold_")))
        for notice in answer.notices:
            remark(f"isosim: {version}: {notice}")
        source = {name: getattr(answer, name) for name in ("domain", "version", "method", "encoder")}

        def line(row: Row) -> str:
            return json_line(row, source) if as_json else tab_line(row, both=one is None, marked=every)

        def rows() -> Iterator[list[Row]]:
            unreadable = 0
            for pairs, answer in itertools.chain([first], every_answer):
                batch = scored(pairs, answer)
                unreadable += sum(map(is_unreadable, batch))
                if limited:
                    passing = answer.match or [matches(row, least, fmr) for row in batch]
                    batch = [row | {"match": match} for row, match in zip(batch, passing, strict=True)]
                yield [row for row in batch if every or row.get("match", True)]
            if unreadable:
                remark(
                    f"isosim: {unreadable:,} pairs are unreadable (the encoder knows too few words of a text, or "
                    "cannot see where the two differ): their similarity is meaningless, their percentile is 0, "
                    "and they never match"
                )

        blocks: Iterable[list[Row]] = rows()
        if top is not None:
            blocks = [heapq.nsmallest(top, itertools.chain.from_iterable(blocks), key=ranked)]
        for block in blocks:
            print("".join(line(row) + "\n" for row in block), end="", flush=True)


def chosen(files: list[Path] | None, one: str | None) -> list[Path]:
    """Paths of the texts to read; prints a hint if one of them is standard input, typed at a terminal."""
    paths = files or [STDIN]
    most = 1 if one is not None else 2
    if len(paths) > most:
        raise typer.BadParameter(f"{len(paths)} texts are given; at most {most} can be read here", param_hint="FILES")
    if paths.count(STDIN) > 1:
        raise typer.BadParameter("standard input can be read only once", param_hint="FILES")
    if one is not None and not one.strip():
        raise typer.BadParameter("the sentence is empty", param_hint="--against")
    if STDIN in paths and sys.stdin.isatty():
        what = (
            "sentences, one per line" if one is not None or len(paths) == 2 else "sentence, tab, sentence in each line"
        )
        remark(f"isosim: reading {what}; Ctrl-D ends the input")
    return paths


def check_lines(path: Path, *, pairs: bool) -> None:
    """Raises InvalidInput for a table, because its rows and header would be scored as sentences.

    If `pairs` is true, TSV is accepted. Each line is then sentence, tab, sentence.
    """
    form = kind_of_name(path.name)
    if form in (None, "text") or (form == "tsv" and pairs):
        return
    wanted = "sentence, tab, sentence in each line" if pairs else "text, one sentence per line"
    raise InvalidInput(
        f"{path} is a table ({form}); this command reads {wanted}. Convert the table, or score pairs of its "
        f"columns: isosim bulk score {path} OUTPUT --columns A B (convert a workbook first: "
        "isosim inspect FILE --csv FILE.csv)"
    )


def pairs_of(texts: list[TextLines], one: str | None) -> Iterator[list[Pair]]:
    if one is not None:
        return against(texts[0], one)
    return aligned(*texts) if len(texts) == 2 else tab_separated(texts[0])


def number_or_name(threshold: str | None) -> tuple[float | None, str | None]:
    """A similarity, or the name of a saved threshold."""
    try:
        least = None if threshold is None else float(threshold)
    except ValueError:
        return None, threshold
    if least is not None and not -1 <= least <= 1:
        raise typer.BadParameter(f"{threshold}: a similarity must be between -1 and 1", param_hint="--threshold")
    return least, None


def matches(row: Row, threshold: float | None, fmr: float | None) -> bool:
    if is_unreadable(row):
        return False
    if threshold is not None:
        return bool(row["similarity"] >= threshold)
    assert fmr is not None  # noqa: S101 - one of the two is given
    return bool(1.0 - row["percentile"] <= fmr)
