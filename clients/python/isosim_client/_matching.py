"""Methods about matches."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from ._answers import Checked, Judged, Match, PairsToJudge
from ._call import Answered, Sender, Streamed
from ._following import followed
from ._methods import Given, IdempotencyKey, answered, download, request, segment, state_of, streamed
from ._retries import Repeat
from ._upload import ANY_FILE, Source, Upload, many


class Form:
    """One or two files as `multipart/form-data`, generated while it is sent. The parts are named a and b."""

    def __init__(self, parts: Mapping[str, Source]) -> None:
        """Raises TypeError as `Upload` does."""
        self._boundary = uuid.uuid4().hex
        self.content_type = f"multipart/form-data; boundary={self._boundary}"
        self._parts = {name: Upload(source) for name, source in parts.items()}

    @property
    def spent(self) -> bool:
        return any(part.spent for part in self._parts.values())

    def chunks(self) -> Iterator[bytes]:
        for name, part in self._parts.items():
            head = f'content-disposition: form-data; name="{name}"; filename="{part.name}"'
            yield f"--{self._boundary}\r\n{head}\r\ncontent-type: {ANY_FILE}\r\n\r\n".encode()
            yield from part.chunks()
            yield b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()


def form(given: Given) -> Form:
    return Form({name: given.pop(name) for name in ("a", "b") if name in given})


def judgements(given: Given) -> None:
    labels, chosen = many(given["labels"], "labels"), {"chosen": True} if given.pop("chosen", False) else {}
    given["labels"] = [dict(zip(("a", "b", "label") if len(one) == 3 else ("pair", "label"), one, strict=True)) | chosen
                       for one in labels]  # fmt: skip


def known(given: Given) -> None:
    given["queries"] = [{"text": text, "match": match} for text, match in given["queries"]]


@request("POST", "matches", prepare=form)
def start_match(
    a: Source,
    b: Source | None = None,
    *,
    domain: str | None = None,
    column: str | int | None = None,
    column_b: str | int | None = None,
    charset: str | None = None,
    sheet: str | None = None,
    header: bool | None = None,
    force: bool = False,
    seed: int = 0,
    idempotency_key: IdempotencyKey = True,
) -> Match:
    """Posts the texts of one file or of two; a background job finds their pairs that mean the same.

    Args:
        a, b: iterables of texts, or `pathlib.Path`s to files, as for `calibrate`. Without `b`, the duplicates of `a`
            are found; with it, the texts of `b` that mean the same as those of `a`.
        domain: whose scale the similarities get. Default: a scale of their own, fitted to the texts, which is kept with
            the match. The name of a domain that does not exist yet keeps that scale as a new domain.
        column, column_b: name or number of the column with the texts; `column_b` of the second file, if it differs.
        charset, sheet, header, force: as for `calibrate`, for both files.
        seed: seed of the random numbers.
        idempotency_key: as for `calibrate`.

    Returns:
        The accepted match, which runs in the background; `wait_match` returns its final state.

    Raises:
        Unavailable: no worker runs jobs on this server. Overloaded: too many jobs wait, or too many results are kept.
        OSError: a file cannot be read.
    """


@request("GET", "matches/{match}")
def match_state(
    match: Match | str,
    *,
    precision: float | None = None,
    fmr: float | None = None,
    false_hit_rate: float | None = None,
    similarity: float | None = None,
    threshold: str | None = None,
    confidence: float | None = None,
) -> Match:
    """The state of a match. Once it has succeeded, `answer` says how many pairs reach a target and what they are worth.

    Args:
        match: the match or its id.
        precision: share of matches among the pairs that pass; needs judged pairs.
        fmr: false-match rate among random pairs. false_hit_rate: share of texts of `a` whose best wrong match passes.
        similarity: the threshold itself. threshold: name of a threshold that is saved in the domain.
        confidence: 0.95: the bound of the interval reaches the target, instead of its middle.

    Raises:
        NotFound: no such match, or its result was removed. InvalidInput: no threshold reaches the target.
        Conflict: a precision is asked for, and too few pairs are judged.
    """


@request("GET", "matches", under="matches")
def matches() -> tuple[Match, ...]:
    """The matches that this API key has posted, newest first."""


@request("DELETE", "matches/{match}", repeat=Repeat.IF_REFUSED)
def delete_match(match: Match | str) -> None:
    """Cancels a match, or removes its texts, pairs and judgements. Raises NotFound, or Conflict if it is publishing."""


@request("GET", "matches/{match}/label")
def pairs_to_judge(
    match: Match | str, count: int = 50, *, precision: float | None = None, recall: bool = True
) -> PairsToJudge:
    """The pairs whose judgement tells most about a precision: some above and some below its threshold.

    Args:
        match: the match or its id.
        count: number of pairs.
        precision: the target; default 0.9.
        recall: False: the precision alone matters; it takes fewer judgements then.
    """


@request("POST", "matches/{match}/labels", prepare=judgements)
def judge(
    match: Match | str,
    labels: Iterable[tuple[int, int | None] | tuple[str, str, int]],
    *,
    chosen: bool = False,
) -> Judged:
    """Judges pairs of a match; a later judgement on the same pair replaces the earlier one.

    Args:
        labels: (number of the pair, label) or (text, text, label); the label is 1 for a match, 0 for no match. With a
            number it may be None, which removes a judgement.
        chosen: whether you picked these pairs because of what they say, for example in the result. They then follow
            their labels, and count for none of the estimates, until they are judged without `chosen`.
    """


@request("POST", "matches/check", prepare=known)
def check_searches(
    queries: Iterable[tuple[str, int | None]],
    gallery: Iterable[str],
    *,
    domain: str = "default",
    false_hit_rate: float = 0.01,
    confidence: float | None = None,
) -> Checked:
    """Searches queries whose answers are known, and says how many hits are wrong and how many matches are found.

    Args:
        queries: (text, place of its match in `gallery` from 0, or None if it has none).
        gallery: the texts that are searched; at most 10,000 together with the queries.
        domain: whose scale the similarities have.
        false_hit_rate: share of the queries that may hit wrongly.
        confidence: 0.95: the upper bound of that share stays below the rate.
    """


@download("matches/{match}/result")
def result(
    match: Match | str,
    *,
    form: str = "pairs",
    format: str = "ndjson",
    at_most: int | None = None,
    precision: float | None = None,
    fmr: float | None = None,
    false_hit_rate: float | None = None,
    similarity: float | None = None,
    threshold: str | None = None,
    confidence: float | None = None,
) -> Iterator[bytes]:
    """The pairs that reach a target, as a file in pieces of bytes. Without a target, as many as there are texts.

    Args:
        form: `pairs` (best first), `best` (every row of `a` with its best match) or `clusters` (of one file).
        format: `csv`, `ndjson` or `xlsx`.
        at_most: maximum number of rows.
        precision, fmr, false_hit_rate, similarity, threshold, confidence: as for `match_state`.
    """


@answered
def wait_match(
    match: Match | str, *, progress: Callable[[Match], object] | None = None, timeout: float | None = None
) -> Answered[Match]:
    """Waits until a match has ended, as `wait` does for a calibration.

    Returns:
        The match that has succeeded.
    """
    return followed(state_of(Match, f"matches/{segment(match)}"), progress, timeout)


@streamed
def match(
    a: Source,
    b: Source | None = None,
    *,
    domain: str | None = None,
    column: str | int | None = None,
    column_b: str | int | None = None,
    form: str = "pairs",
    at_most: int | None = None,
    fmr: float | None = None,
    false_hit_rate: float | None = None,
    similarity: float | None = None,
) -> Streamed[dict[str, Any]]:
    """Yields the pairs of texts that mean the same, best first: in one file, or between two.

    Starts a match, waits until it has succeeded, and reads its pairs: those that reach the target, or as many as there
    are texts. The match stays on the server for a day; `start_match`, `judge` and `result` use it again.

    Args:
        a, b, domain, column, column_b: as for `start_match`. form, at_most: as for `result`.
        fmr, false_hit_rate, similarity: as for `match_state`.

    Yields:
        Dictionaries with row_a, row_b, text_a, text_b, similarity, percentile, probability, label and the other
            columns.
    """
    start = start_match.requests(a, b, domain=domain, column=column, column_b=column_b)

    async def stream(sender: Sender) -> AsyncGenerator[dict[str, Any], None]:
        started = await start(sender)
        await wait_match.requests(started)(sender)
        found = result.requests(
            started, form=form, at_most=at_most, fmr=fmr, false_hit_rate=false_hit_rate, similarity=similarity
        )
        rest = b""
        async with aclosing(found(sender)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    yield json.loads(line)

    return stream
