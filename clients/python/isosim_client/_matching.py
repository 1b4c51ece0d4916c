"""Calls about matches. The arguments are documented at the methods of `Client`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ._answers import Checked, Judged, Match, PairsToJudge
from ._call import Call, IdempotencyKey, Streamed, answer, given, keyed, listed, many, nothing, segment
from ._retries import Repeat
from ._upload import ANY_FILE, Source, Upload

if TYPE_CHECKING:
    from ._sending import Sender


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
) -> Call[Match]:
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
        EmptyInput, InvalidInput: no text, too many rows, a table without `column`, or an invalid line.
        TooLarge: more bytes than the server accepts. NotFound: no such version of the domain.
        Unavailable: no worker runs jobs on this server. Overloaded: too many jobs wait, or too many results are kept.
        OSError: a file cannot be read.
    """
    parts = {"a": a} if b is None else {"a": a, "b": b}
    words = {"header": header, "force": force or None}
    query = given(
        domain=domain, column=column, column_b=column_b, charset=charset, sheet=sheet, seed=seed,
        **{name: None if value is None else str(value).lower() for name, value in words.items()},
    )  # fmt: skip
    return Call(
        method="POST", path="matches", query=query, upload=Form(parts), parse=answer(Match), **keyed(idempotency_key)
    )


def path_of(match: Match | str) -> str:
    return f"matches/{segment(match.id if isinstance(match, Match) else match)}"


def match_state(
    match: Match | str,
    *,
    precision: float | None = None,
    fmr: float | None = None,
    false_hit_rate: float | None = None,
    similarity: float | None = None,
    threshold: str | None = None,
    confidence: float | None = None,
) -> Call[Match]:
    """The state of a match. Once it has succeeded, `answer` says how many pairs reach a target and what they are worth.

    Args:
        match: the match or its id.
        precision: share of matches among the pairs that pass; needs judged pairs.
        fmr: false-match rate among random pairs. false_hit_rate: share of texts of `a` whose best wrong match passes.
        similarity: the threshold itself. threshold: name of a threshold that is saved in the domain.
        confidence: 0.95: the bound of the interval reaches the target, instead of its middle.

    Raises:
        NotFound: no such match, or its result was removed. Conflict: a precision is asked for, and too few pairs are
            judged. InvalidInput: no threshold reaches the target, or several targets are given.
    """
    query = given(
        precision=precision, fmr=fmr, false_hit_rate=false_hit_rate, similarity=similarity, threshold=threshold,
        confidence=confidence,
    )  # fmt: skip
    return Call(method="GET", path=path_of(match), query=query, parse=answer(Match))


def matches() -> Call[tuple[Match, ...]]:
    """The matches that this API key has posted, newest first."""
    return Call(method="GET", path="matches", parse=listed(Match, "matches"))


def delete_match(match: Match | str) -> Call[None]:
    """Cancels a match, or removes its texts, pairs and judgements. Raises NotFound, or Conflict if it is publishing."""
    return Call(method="DELETE", path=path_of(match), parse=nothing, repeat=Repeat.IF_REFUSED)


def pairs_to_judge(match: Match | str, count: int = 50, *, precision: float | None = None) -> Call[PairsToJudge]:
    """The pairs whose judgement tells most about a precision: some above and some below its threshold.

    Raises:
        NotFound: no such match. Conflict: it has not succeeded.
    """
    query = given(count=count, precision=precision)
    return Call(method="GET", path=f"{path_of(match)}/label", query=query, parse=answer(PairsToJudge))


def judge(match: Match | str, labels: Iterable[tuple[int, int | None] | tuple[str, str, int]]) -> Call[Judged]:
    """Judges pairs of a match; a later judgement on the same pair replaces the earlier one.

    Args:
        labels: (number of the pair, label) or (text, text, label); the label is 1 for a match, 0 for no match. With a
            number it may be None, which removes a judgement.

    Raises:
        InvalidInput: there is no pair with this number. NotFound: no such match. Conflict: it has not succeeded.
    """
    body = [dict(zip(("pair", "label") if len(one) == 2 else ("a", "b", "label"), one, strict=True))
            for one in many(labels, "labels", "(pair, label)")]  # fmt: skip
    return Call(method="POST", path=f"{path_of(match)}/labels", body={"labels": body}, parse=answer(Judged))


def check_searches(
    queries: Iterable[tuple[str, int | None]],
    gallery: Iterable[str],
    *,
    domain: str = "default",
    false_hit_rate: float = 0.01,
    confidence: float | None = None,
) -> Call[Checked]:
    """Searches queries whose answers are known, and says how many hits are wrong and how many matches are found.

    Args:
        queries: (text, place of its match in `gallery` from 0, or None if it has none).
        gallery: the texts that are searched; at most 10,000 together with the queries.
        domain: whose scale the similarities have.
        false_hit_rate: share of the queries that may hit wrongly.
        confidence: 0.95: the upper bound of that share stays below the rate.

    Raises:
        EmptyInput, InvalidInput: there are no queries or entries, or too many, or a match is not in the gallery.
        NotFound: no such domain.
    """
    body = given(
        queries=[{"text": text, "match": match} for text, match in queries], gallery=many(gallery, "gallery"),
        domain=domain, false_hit_rate=false_hit_rate, confidence=confidence,
    )  # fmt: skip
    return Call(method="POST", path="matches/check", body=body, parse=answer(Checked))


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
) -> Streamed[bytes]:
    """The pairs that reach a target, as a file in pieces of bytes. Without a target, as many as there are texts.

    Args:
        form: `pairs` (best first), `best` (every row of `a` with its best match) or `clusters` (of one file).
        format: `csv`, `ndjson` or `xlsx`.
        at_most: maximum number of rows.
        precision, fmr, false_hit_rate, similarity, threshold, confidence: as for `match_state`.

    Raises:
        As `match_state` does.
    """
    query = given(
        form=form, format=format, at_most=at_most, precision=precision, fmr=fmr, false_hit_rate=false_hit_rate,
        similarity=similarity, threshold=threshold, confidence=confidence,
    )  # fmt: skip
    call = Call(method="GET", path=f"{path_of(match)}/result", query=query, parse=nothing)

    async def stream(sender: Sender) -> AsyncGenerator[bytes, None]:
        async with sender.open(call, sender.timeout) as pieces:
            async for piece in pieces:
                yield piece

    return stream
