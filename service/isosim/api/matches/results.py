"""Reads matches: the state of a job, its pairs for a target, the pairs to judge."""

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import TypeAdapter

from isosim.api.bodies import body_of
from isosim.api.calibration.calibrate import STREAM, changes, facts_of, megabytes
from isosim.api.calibration.files import FILE, one_of_few, sent, temporary
from isosim.api.matches.schemas import Matches, PairLabel, PairLabels, TextLabel
from isosim.api.matches.sheets import sheet
from isosim.api.matches.views import Ask, Form, View, histogram, ranked
from isosim.api.matches.writing import MEDIA, FileType, written
from isosim.api.policy import needs
from isosim.api.requests import JobId, TraceDep, json_response, parsed
from isosim.api.state import Service, ServiceDep
from isosim.api.trace import Trace
from isosim.errors import CallerLeft, InvalidInput, NotFound, TooLarge
from isosim.jobs.job import Job
from isosim.jobs.matches import Result, check_ended
from isosim.matching.drawing import draw
from isosim.scoring.advice import Target, unknown_threshold
from isosim.threads import LONG
from isosim_client import Judged, Match, PairsToJudge, PairToJudge

T = TypeVar("T")

router = APIRouter(prefix="/matches", tags=["matches"])

READ = [needs("read")]
MOST_TO_JUDGE = 1000
PAIR_LABELS = TypeAdapter(PairLabels)
LEFT_OUT = "x-isosim-left-out"
RESULT_GROWTH = 10  # a result may have so many times the bytes of ISOSIM_MAX_CALIBRATION_BYTES


async def own_match(job_id: JobId, service: ServiceDep, trace: TraceDep) -> Job:
    """The match that the path names. Raises NotFound, not Forbidden, if another API key has posted it."""
    with suppress(NotFound):
        job = await service.job_reads(service.jobs.read, job_id)
        if job.request.match is not None and may_read(trace, job):
            return job
    raise NotFound(f"no match {job_id[:64]!r}")


MatchDep = Annotated[Job, Depends(own_match)]


def may_read(trace: Trace, job: Job) -> bool:
    """Whether the caller has posted the match, or is an admin of the domain whose scale it has."""
    admin = "admin" in trace.grant.scopes and trace.grant.may_use(job.request.domain)
    return job.owner == trace.grant.id or admin


async def ask_of(
    precision: Annotated[
        float | None, Query(gt=0, lt=1, description="share of matches among the pairs that pass; needs judged pairs")
    ] = None,
    fmr: Annotated[float | None, Query(description="false-match rate among random pairs of texts")] = None,
    false_hit_rate: Annotated[
        float | None, Query(description="share of texts of the first file whose best wrong match passes")
    ] = None,
    similarity: Annotated[float | None, Query(ge=-1, le=1, description="the threshold itself")] = None,
    threshold: Annotated[
        str | None, Query(max_length=64, description="name of a threshold saved in the domain")
    ] = None,
    confidence: Annotated[
        float | None,
        Query(ge=0.5, le=0.99, description="0.95: the bound of the interval reaches the target, instead of its middle"),
    ] = None,
) -> dict[str, Any]:
    """The target that the query names. Raises InvalidInput if it names several."""
    given = {"precision": precision, "fmr": fmr, "false_hit_rate": false_hit_rate, "similarity": similarity,
             "threshold": threshold}  # fmt: skip
    target = {name: value for name, value in given.items() if value is not None}
    if len(target) > 1:
        raise InvalidInput(f"{', '.join(target)}: give one of them")
    if confidence is not None and not target.keys() - {"similarity"}:
        raise InvalidInput("confidence: goes with a target: precision, fmr, false_hit_rate or threshold")
    return {**target, "confidence": confidence}


AskDep = Annotated[dict[str, Any], Depends(ask_of)]


def view_of(service: Service, trace: Trace, result: Result, wanted: dict[str, Any]) -> View:
    """Raises InvalidInput or NotFound for a target that cannot be used, Forbidden for a saved threshold of a domain
    that the key may not use any more, and as `View` does."""
    report, wanted = result.job.report or {}, dict(wanted)
    confidence = wanted.pop("confidence")
    if "threshold" in wanted:
        domain = report["scale"]["domain"]
        if domain is None:
            raise InvalidInput("threshold: this match has a scale of its own, and no saved thresholds")
        trace.grant.check_domain(domain)
        saved = service.domains.read(domain).targets
        if wanted["threshold"] not in saved:
            raise unknown_threshold(domain, wanted["threshold"])
        wanted = saved[wanted["threshold"]].facts
        wanted.pop("gallery", None)
    if "similarity" in wanted or not wanted:
        return View(result, Ask(similarity=wanted.get("similarity"), confidence=confidence))
    if "false_hit_rate" in wanted:
        distinct = report["distinct"]
        wanted["gallery"] = max(1, distinct[-1] - (len(distinct) == 1))
    if confidence not in (None, 0.95) and "precision" not in wanted:
        raise InvalidInput("confidence: for a rate, only 0.95 is known")
    return View(result, Ask(Target(**wanted), confidence=confidence))


async def read(service: Service, trace: Trace, job: Job, look: Callable[[Result], T]) -> T:
    """Opens a result in a thread, and returns what `look` sees there. Few at a time, and one for each API key."""
    check_ended(job)

    def looked() -> T:
        with service.results.opened(job) as result:
            return look(result)

    return await service.looks(trace.grant, looked)


def state(job: Job, **more: Any) -> Match:
    report = job.report or {}
    found = {name: report.get(name) for name in ("scale", "distinct", "copies", "candidates", "floor", "pairs")}
    return Match(**facts_of(job, Match) | found | more)


def listed_state(service: Service, job: Job) -> Match:
    """The state of a match in a list, with the number of its judgements once it has succeeded. Reads the store."""
    there = service.results.seen(job) if job.status.value == "succeeded" else None
    return state(job) if there is None else state(job, judged=len(there.labels), until=service.results.until(there))


def so_far(service: Service, job: Job) -> Match:
    """The state of a match, with the best pairs while it runs. Reads the store."""
    return state(job, best=service.results.best(job))


@router.get("", response_model=Matches, dependencies=READ)
async def list_matches(
    service: ServiceDep, trace: TraceDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    """The matches that this API key has posted (an admin's key: all), newest first, without those whose result was
    removed."""

    def listed() -> Response:
        mine = (job for job in service.jobs.newest() if job.request.match is not None and may_read(trace, job))
        return json_response({"matches": [listed_state(service, job) for job in islice(mine, limit)]})

    return await service.listings(trace.grant, listed)


@router.get("/{job_id}", response_model=Match, dependencies=READ)
async def get_match(job: MatchDep, service: ServiceDep, trace: TraceDep, wanted: AskDep) -> Response:
    """A match's state. Once it has succeeded: how many pairs reach a target, and, with judged pairs, how many of them
    are expected to be false and what share of the matches they are. Without a target, as many pairs as there are texts.
    """
    if job.status.value != "succeeded":
        return json_response(await service.job_reads(so_far, service, job))

    def look(result: Result) -> Match:
        judgements, answer = result.judgements, view_of(service, trace, result, wanted).answer
        until = service.results.until(judgements)
        return state(job, judged=len(judgements.labels), until=until, answer=answer, histogram=histogram(result))

    return json_response(await read(service, trace, job, look))


@router.get("/{job_id}/events", dependencies=STREAM, response_class=EventSourceResponse)
async def match_events(job: MatchDep, service: ServiceDep) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events with the match's state at each change, until it ends."""
    async for event in changes(service, job.id, partial(so_far, service)):
        yield event


@router.get(
    "/{job_id}/result",
    dependencies=READ,
    response_class=Response,
    responses={
        200: {
            "content": {kind: {"schema": FILE} for kind in MEDIA.values()},
            "headers": {
                LEFT_OUT: {
                    "description": "pairs that reach the target and are left out, because they were judged different",
                    "schema": {"type": "integer"},
                }
            },
        }
    },
)
async def match_result(
    job: MatchDep,
    service: ServiceDep,
    trace: TraceDep,
    wanted: AskDep,
    form: Annotated[
        Form,
        Query(
            description="pairs: the pairs that pass, best first, each with its number (`pair`); best: every row of the "
            "first file with its best match if one passes; clusters: groups of rows of one file; judged: all judged "
            "pairs, each with the number of kept pairs for which it stands (`weight`)"
        ),
    ] = "pairs",
    skip: Annotated[int, Query(ge=0, description="number of rows to leave out at the beginning")] = 0,
    at_most: Annotated[int | None, Query(ge=0, description="number of rows")] = None,
    file_type: Annotated[FileType, Query(alias="format")] = "ndjson",
) -> Response:
    """The pairs that reach a target, as a file. Without a target, as many as there are texts. A judged pair follows its
    judgement: one judged different is left out, and one judged the same is in whatever its similarity. A workbook's
    columns have plain names, those for people first; its sheet `figures` explains the others."""
    async with AsyncExitStack() as stack:
        out = await stack.enter_async_context(temporary(service, trace.grant))
        left, most = threading.Event(), RESULT_GROWTH * service.settings.max_calibration_bytes
        first = min(skip, sys.maxsize)  # islice takes no larger number
        last = None if at_most is None else min(skip + at_most, sys.maxsize)

        def write() -> int:
            with service.results.opened(job, vectors=form == "clusters") as result:
                view = view_of(service, trace, result, wanted)
                names, rows = view.table(form)
                rows, worth, formats = islice(until(left, rows), first, last), [], dict[str, str]()
                if file_type == "xlsx":
                    worth = view.worth(wanted)
                if file_type == "xlsx" and form != "judged":  # else the names that readers of labels know
                    shown = sheet(view, form, rows, partial(until, left))
                    names, rows, formats = shown.titles, shown.rows, shown.formats
                    worth += shown.explained
                for piece in written(file_type, names, rows, worth, formats):
                    out.write(piece)
                    if out.tell() > most:
                        raise TooLarge(f"the result is larger than {megabytes(most)}; give at_most")
            out.flush()
            return view.left_out

        check_ended(job)
        with one_of_few(service, trace.grant):
            unwatch = trace.watch(left.set)
            try:
                left_out = await service.store.within(LONG, write)
            finally:
                left.set()  # ends the thread, which goes on if the caller leaves
                unwatch()
        headers = {"content-disposition": f'attachment; filename="{form}.{file_type}"', "cache-control": "no-store"}
        headers |= {} if form == "judged" else {LEFT_OUT: str(left_out)}
        return StreamingResponse(sent(stack.pop_all(), out), media_type=MEDIA[file_type], headers=headers)


def until(left: threading.Event, rows: Iterable[T]) -> Iterator[T]:
    """The rows. Raises CallerLeft when `left` is set: the caller has disconnected."""
    for row in rows:
        if left.is_set():
            raise CallerLeft
        yield row


@router.get("/{job_id}/label", dependencies=READ)
async def pairs_to_judge(
    job: MatchDep,
    service: ServiceDep,
    trace: TraceDep,
    wanted: AskDep,
    count: Annotated[int, Query(ge=1, le=MOST_TO_JUDGE)] = 50,
    recall: Annotated[
        bool, Query(description="false: the precision alone matters; it takes fewer judgements then")
    ] = True,
) -> PairsToJudge:
    """The pairs whose judgement tells most about the target: some above and some below its threshold. Pairs that were
    judged as chosen ones may be among them, so that the choice does not decide which pairs the estimates rest on."""

    def look(result: Result) -> PairsToJudge:
        candidates, (judged, labels) = result.found.candidates, result.drawn
        target: dict[str, Any] = {"precision": wanted["precision"]} if "precision" in wanted else {}
        if wanted.keys() - {"confidence"} and not target:
            view = view_of(service, trace, result, wanted)
            ranking, target = view.ranking, {"threshold": view.threshold}
        else:
            ranking = ranked(result)
        places = draw(
            ranking.similarity, ranking.place[judged], labels, count, recall=recall, seed=job.request.seed, **target
        )
        drawn = ranking.order[places]
        pairs = []
        for pair in drawn.tolist():
            a = result.files[0][int(result.found.left.first[candidates.left[pair]])]
            b = result.files[-1][int(result.found.right.first[candidates.right[pair]])]
            score = float(candidates.similarity[pair])
            pairs.append(PairToJudge(pair=pair, similarity=score, row_a=a.number, row_b=b.number, a=a.text, b=b.text))
        return PairsToJudge(pairs=tuple(pairs), judged=len(result.judgements.labels))

    return await read(service, trace, job, look)


@router.post(
    "/{job_id}/labels", openapi_extra=body_of(PairLabels), dependencies=[needs("read", body="json", json=True)]
)
async def judge_pairs(job: MatchDep, request: Request, service: ServiceDep, trace: TraceDep) -> Judged:
    """Judges pairs of a match. A later judgement on the same pair replaces the earlier one, so this may be repeated."""
    body = await parsed(service, PAIR_LABELS, await request.body())
    check_ended(job)
    numbered: dict[int, PairLabel | TextLabel] = {one.pair: one for one in body.labels if isinstance(one, PairLabel)}
    named = {(one.a.strip(), one.b.strip()): one for one in body.labels if isinstance(one, TextLabel)}
    unknown, places = 0, dict[tuple[str, str], int]()
    if named:
        places = await read(service, trace, job, lambda result: places_of(result, set(named)))
        unknown = len(named) - len(places)
        numbered |= {pair: named[texts] for texts, pair in places.items()}
    given = {pair: one.label for pair, one in numbered.items()}
    chosen = [pair for pair, one in numbered.items() if one.chosen]
    judgements = await service.store(service.results.judge, job, given, places.values(), chosen)
    labels = judgements.labels.values()
    return Judged(
        judged=len(labels),
        chosen=len(judgements.chosen),
        matches=sum(labels),
        unknown=unknown,
        until=service.results.until(judgements),
    )


def places_of(result: Result, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The candidates with these texts. Within one file, the order of a pair's texts does not matter."""
    one_file = len(result.files) == 1
    texts = {text for pair in wanted for text in pair}
    number: list[dict[str, int]] = []
    for side, file in zip(result.found.sides, result.files, strict=True):
        each = ((file[int(row)].text, text) for text, row in enumerate(side.first.tolist()))
        number.append({text: place for text, place in each if text in texts})
    pair_of: dict[tuple[int, int], tuple[str, str]] = {}
    for a, b in wanted:
        left, right = number[0].get(a), number[-1].get(b)
        if left is not None and right is not None:
            pair_of[(min(left, right), max(left, right)) if one_file else (left, right)] = (a, b)
    candidates, width = result.found.candidates, len(result.found.right.first)
    codes = candidates.left.astype(np.int64) * width + candidates.right
    coded = {left * width + right: texts for (left, right), texts in pair_of.items()}
    places = np.flatnonzero(np.isin(codes, [*coded]))
    return {coded[int(codes[place])]: int(place) for place in places}


@router.delete("/{job_id}", status_code=204, dependencies=READ)
async def delete_match(job: MatchDep, service: ServiceDep) -> Response:
    """Cancels a match that has not ended; removes texts, pairs and judgements of one that has."""
    if not job.status.ended:
        await service.store(service.jobs.cancel, job.id)
        return Response(status_code=204)
    await service.store(service.results.remove, job)
    await service.store(service.jobs.remove, job)  # the same post makes another match
    return Response(status_code=204)
