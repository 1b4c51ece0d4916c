"""`isosim match`: the pairs of texts that mean the same, in one file or between two."""

import csv
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from isosim.commands.calibration import Labels
from isosim.commands.client import Server, connected, followed
from isosim.commands.files import Charset, Column, Header, Sheet, limits
from isosim.commands.shared import AsJson, EncoderId, Store
from isosim.commands.terminal import print_json, remark, show, tabbed
from isosim.errors import InvalidInput
from isosim.jobs.job import LABEL_KINDS
from isosim.jobs.labelled_pairs import labelled_pairs
from isosim.jobs.sandbox import Reading, read_path
from isosim.jobs.text_lines import STDIN, read_lines
from isosim.scoring.calibration import DEFAULT
from isosim_client import ApiError, Client, Match, MatchAnswer, NoAnswer, SearchOutcome

FORMATS = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".xlsx": "xlsx"}
TEXT = 200  # characters of a text that are printed on a terminal
SHOWN = 20  # rows that are printed on a terminal without --output
ANSWERS = {"y": 1, "yes": 1, "1": 1, "n": 0, "no": 0, "0": 0}
COLUMNS = {"clusters": ("cluster", "size", "text")}  # that are printed on a terminal, by form; of the others PAIR
PAIR = ("similarity", "text_a", "text_b")
PART = 5000  # labels that are sent at once


def match(
    a: Annotated[
        Path | None,
        typer.Argument(help="texts: one a line, or a table (CSV, TSV, NDJSON, Parquet, .xlsx); - reads standard input"),
    ] = None,
    b: Annotated[Path | None, typer.Argument(help="a second file; without it, the duplicates of A are found")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="write the rows to this file: .csv, .ndjson or .xlsx")
    ] = None,
    fmr: Annotated[float | None, typer.Option(help="false-match rate among random pairs, for example 1e-5")] = None,
    precision: Annotated[
        float | None, typer.Option(help="share of matches among the pairs that pass; needs --labels or --judge")
    ] = None,
    similarity: Annotated[float | None, typer.Option(help="lowest similarity of the pairs that pass")] = None,
    false_hit_rate: Annotated[
        float | None, typer.Option(help="share of the texts of A whose best wrong match passes")
    ] = None,
    threshold: Annotated[str | None, typer.Option(help="name of a threshold that is saved in the domain")] = None,
    confidence: Annotated[
        float | None, typer.Option(help="0.95: the bound of the interval reaches the target, instead of its middle")
    ] = None,
    form: Annotated[
        Literal["pairs", "best", "clusters"],
        typer.Option(help="pairs (best first), best (every row of A with its best match) or clusters (of one file)"),
    ] = "pairs",
    at_most: Annotated[int | None, typer.Option(min=0, help="number of rows")] = None,
    labels: Labels = None,
    chosen: Annotated[
        bool,
        typer.Option(
            "--chosen",
            help="the --labels are of pairs that you picked in a result: they count for its rows, not for precision",
        ),
    ] = False,
    judge: Annotated[int, typer.Option(min=0, help="ask for your judgement on this many pairs first")] = 0,
    again: Annotated[
        str | None,
        typer.Option("--match", help="the id of an earlier match, instead of files: nothing is embedded again"),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="searches with known answers: a table of query and match, a text of A or nothing"),
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option(help="whose scale to use; default: one fitted to the texts"),
    ] = None,
    column: Column = None,
    column_b: Annotated[str | None, typer.Option(help="column of B, if it has another name")] = None,
    charset: Charset = None,
    sheet: Sheet = None,
    header: Header = None,
    force: Annotated[
        bool, typer.Option("--force", help="take each line as a text even if lines look like rows of a table")
    ] = False,
    server: Server = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Find the pairs of texts that mean the same, in one file or between two. Ctrl-C cancels it.

    Without a target, as many pairs as there are texts are given, the most similar first.
    """
    check_options(a, b, again, output)
    same = f" --server {server}" if server is not None else ""
    target: dict[str, Any] = {
        "fmr": fmr, "precision": precision, "false_hit_rate": false_hit_rate, "similarity": similarity,
        "threshold": threshold, "confidence": confidence,
    }  # fmt: skip
    judgements = [] if labels is None else labelled_pairs(labels, LABEL_KINDS[0])
    reading: dict[str, Any] = {"charset": charset, "sheet": sheet, "header": header, "force": force}
    if check is not None:
        if a is None or b is not None:
            raise typer.BadParameter("goes with one file, which is searched", param_hint="--check")
        source = Reading("entries", column, None, charset, sheet, header, force)
        with connected(server, model_store=model_store, encoder=encoder) as client:
            searches(client, a, source, check, domain or DEFAULT, false_hit_rate or 0.01, confidence, as_json=as_json)
        return
    with connected(server, model_store=model_store, encoder=encoder) as client:
        if a is None:
            found = client.match_state(str(again))
        else:
            sources = [read_lines(path) if path == STDIN else path for path in (a, b) if path is not None]
            started = client.start_match(*sources, domain=domain, column=column, column_b=column_b, **reading)
            found = finished(client, started, same)
        for start in range(0, len(judgements), PART):
            part = [(pair.a, pair.b, int(pair.label)) for pair in judgements[start : start + PART]]
            judged = client.judge(found, part, chosen=chosen)
            if judged.unknown:
                remark(f"isosim: {judged.unknown:,} labelled pairs are not among the candidates")
        if judge:
            ask(client, found, judge, precision)
        try:
            state = client.match_state(found, **target)
        except ApiError:
            if output is not None and output.exists():
                remark(f"isosim: {output} stays as it was before")
            raise
        view = {"form": form, "at_most": at_most, **target}
        if output is not None:
            pieces = client.result(found, format=FORMATS[output.suffix.lower()], **view)
            first = next(pieces, b"")  # an error leaves the file as it was
            with output.open("wb") as file:
                file.write(first)
                file.writelines(pieces)
        if as_json:
            rows = [] if output is not None else client.result(found, format="ndjson", **view)
            print_json({**asdict(state), "result": [json.loads(line) for line in b"".join(rows).splitlines()]})
            return
        if output is None:
            print_rows(client, found, view)
        summarize(state, output, same)


def check_options(a: Path | None, b: Path | None, again: str | None, output: Path | None) -> None:
    """Raises typer.BadParameter."""
    if (a is None) == (again is None) or (b is not None and again is not None):
        raise typer.BadParameter("give one file or two, or the id of an earlier match", param_hint="A or --match")
    if a is not None and b is not None and a != STDIN and a.resolve() == b.resolve():
        raise typer.BadParameter("it is the same file as A; leave it out to find the duplicates of A", param_hint="B")
    if output is not None and output.suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"its ending must be one of {', '.join(FORMATS)}", param_hint="--output")


def searches(
    client: Client,
    gallery: Path,
    reading: Reading,
    check: Path,
    domain: str,
    rate: float,
    confidence: float | None,
    *,
    as_json: bool,
) -> None:
    """Prints what searches with known answers give."""
    with read_path(gallery, reading, limits()) as (_, entries):
        texts = list(dict.fromkeys(map(str, entries)))
    place = {text: number for number, text in enumerate(texts)}
    with read_path(check, Reading("rows"), limits()) as (facts, rows):
        known = [(row[0].strip(), row[1].strip() if len(row) > 1 else "") for row in rows][bool(facts["header"]) :]
    for query, match in known:
        if match and match not in place:
            raise InvalidInput(f"{check}: {match[:80]!r}, the match of {query[:80]!r}, is not a text of {gallery}")
    queries = [(query, place[match] if match else None) for query, match in known if query]
    found = client.check_searches(queries, texts, domain=domain, false_hit_rate=rate, confidence=confidence)
    if as_json:
        print_json(found)
        return
    columns = ("", "similarity ≥", "wrong hits", "95 % interval", "matches found", "95 % interval")
    outcomes = [(f"at most {rate:.3g} wrong", found.threshold), (f"what {domain} promises", found.promised)]
    show(columns, [outcome_row(name, one) for name, one in outcomes if one is not None], head=True)
    for notice in found.notices:
        remark(f"isosim: {notice}")
    if found.threshold is None:
        remark(f"isosim: no threshold has so few wrong hits; judge more queries ({found.queries_needed:,})")
    remark(f"{found.queries:,} queries, {found.with_match:,} with a match; {found.queries_needed:,} tell it to ± 0.005")


def outcome_row(name: str, one: SearchOutcome) -> tuple[str, ...]:
    found = "" if one.found is None else f"{one.found:.3f}"
    spans = [f"{low:.3f} to {high:.3f}" for low, high in (one.wrong_interval, one.found_interval)]
    return name, f"{one.similarity:.4f}", f"{one.wrong:.4f}", spans[0], found, spans[1] if found else ""


def finished(client: Client, started: Match, same: str) -> Match:
    """Waits for the end of a match, and prints its notices. `same`: the option that names the server again, if there
    is one. Raises isosim_client.JobError if it has not succeeded."""
    if started.seconds is not None and started.seconds > 60:
        remark(f"isosim: this takes about {started.seconds / 60:.0f} minutes on two cores")
    with followed(lambda: client.delete_match(started)) as progress:
        try:
            found = client.wait_match(started, progress=progress)
        except NoAnswer:
            remark(f"isosim: the match goes on when its server is back: isosim match --match {started.id}{same}")
            raise
    for notice in found.notices:
        remark(f"isosim: {notice}")
    return found


def ask(client: Client, found: Match, count: int, precision: float | None) -> None:
    """Asks for judgements on pairs; each one is sent at once."""
    pairs = client.pairs_to_judge(found, count, precision=precision).pairs
    place, judged = 0, None
    while place < len(pairs):
        pair = pairs[place]
        remark(
            f"\n{place + 1} of {len(pairs)}\n  {pair.a}\n  {pair.b}\nthe same? y, n, s to skip, u to go back, q to stop"
        )
        said = (sys.stdin.readline() or "q").strip().lower()
        if said == "q":
            break
        if said in ANSWERS:
            judged = client.judge(found, [(pair.pair, ANSWERS[said])])
            place += 1
        elif said == "s":
            place += 1
        elif said == "u":
            place = max(place - 1, 0)
        else:
            remark(f"isosim: {said[:20]!r} is none of y, n, s, u, q")
    if judged is not None:
        remark(f"{judged.judged:,} pairs are judged, {judged.matches:,} of them are matches")


def print_rows(client: Client, found: Match, view: Mapping[str, Any]) -> None:
    """Prints the first rows on a terminal, all of them as TSV otherwise."""
    terminal = sys.stdout.isatty()
    at_most = min(view["at_most"] or SHOWN, SHOWN) if terminal else view["at_most"]
    content = b"".join(client.result(found, format="csv", **{**view, "at_most": at_most}))
    names, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    if terminal:
        columns = COLUMNS.get(view["form"], PAIR)
        places = [names.index(column) for column in columns]
        show(columns, [[row[place][:TEXT] for place in places] for row in rows])
        if len(rows) == SHOWN:
            remark(f"these are the first {SHOWN} rows; all of them, with all columns: -o FILE.csv")
        return
    for row in [names, *rows]:
        print(tabbed(row))


def summarize(state: Match, output: Path | None, same: str) -> None:
    """What was compared, what passes and what it is worth, and what to do next."""
    answer = state.answer
    assert answer is not None  # noqa: S101 - the match has succeeded
    copies = sum(state.copies or ())
    texts = " and ".join(f"{count:,}" for count in state.distinct or ())
    remark(f"different texts: {texts}; pairs compared: {state.pairs:,}, kept: {state.candidates:,}")
    repeated = f"; before them, {copies:,} rows that repeat a text" if copies and len(state.rows) == 1 else ""
    remark(worth(answer) + repeated)
    written = f"written to {output}; " if output is not None else ""
    files = zip(answer.matched_rows, state.rows, strict=False)
    rows = " and ".join(f"{matched:,} of {every:,}" for matched, every in files)
    remark(f"{written}rows with a match: {rows}; match {state.id} is kept until {state.until}:")
    remark(f"  isosim match --match {state.id}{same}")
    if answer.more_labels:
        remark(f"isosim: judge about {answer.more_labels:,} more pairs: precision to ± 0.1, recall to ± 0.15")
    for notice in answer.notices:
        if answer.precision is not None or "not judged" not in notice:  # `worth` has said it
            remark(f"isosim: {notice}")


def worth(answer: MatchAnswer) -> str:
    passing = (
        f"{answer.passing:,} pairs of {'an adjusted similarity of ' * answer.adjusted}at least {answer.similarity:.4f}"
    )
    below = f" or judged the same ({answer.confirmed_below:,})" * bool(answer.confirmed_below)
    out = f"; left out: {answer.left_out:,} judged different" * bool(answer.left_out)
    if answer.precision is None or answer.expected_false is None or answer.recall is None:
        return f"{passing}{below}; not judged: give --labels FILE, or --judge 50{out}"
    low, high = answer.precision_interval or (0.0, 1.0)
    least, most = answer.recall_interval or (0.0, 1.0)
    return (
        f"{passing}{below}: about {answer.expected_false:.0f} of them are expected to be false (precision "
        f"{answer.precision:.2f}, 95 %: {low:.2f} to {high:.2f}); {answer.recall:.0%} of the matches ({least:.0%} to "
        f"{most:.0%}); {answer.judged} judged{out}"
    )
