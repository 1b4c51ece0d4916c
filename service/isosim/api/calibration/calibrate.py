"""Calibration jobs: post text, follow the job, cancel it."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, TypeAdapter, ValidationError

from isosim.access.grants import Grant
from isosim.api.bodies import body_of
from isosim.api.calibration.files import FILE_TYPES, NPY, ReadingDep, check_no_form, content_type, read_body
from isosim.api.calibration.schemas import (
    CalibrateOptions,
    CalibrateRequest,
    JobAccepted,
    Jobs,
    LabelsRequest,
)
from isosim.api.policy import is_json, needs
from isosim.api.requests import JobDep, JobId, TraceDep, json_response, parsed
from isosim.api.state import Phase, Service, ServiceDep
from isosim.api.trace import Trace
from isosim.encoders.store import EncoderArtifact
from isosim.errors import (
    EncoderMismatch,
    InvalidInput,
    Overloaded,
    ShareUsed,
    Unavailable,
)
from isosim.jobs.intake import Intake, Limits, brought_by, check_enough
from isosim.jobs.job import Job, JobRequest, LabelledPair
from isosim.jobs.posted import Spool
from isosim.jobs.requirements import MOST_SENTENCES
from isosim.jobs.store import JobStore, OpenJob, owner_name
from isosim.scoring.calibration import DomainRef
from isosim.store.identity import identify
from isosim.threads import LONG
from isosim.wording import place
from isosim_client import Job as JobState
from isosim_client import Match as MatchState

Options = TypeVar("Options", bound=BaseModel)
Posted = TypeVar("Posted", bound=BaseModel)

router = APIRouter(prefix="/calibrate", tags=["calibration"])
READ, CALIBRATE = [needs("read")], [needs("calibrate")]

EVENT_SECONDS = 0.25  # seconds between reads of a job's record for its event stream
DISTANT_EVENT_SECONDS = 1.0  # seconds between reads of a job's record if it is in object storage

BODY_DOC = body_of(
    CalibrateRequest,
    {
        "text/plain": {"type": "string", "description": "one sentence in each line"},
        "application/x-ndjson": {
            "type": "string",
            "description": 'lines of "a sentence", {"text": "a sentence"} or {"a": "…", "b": "…", "label": 1}; for '
            'encoders whose users bring vectors, lines of {"vector": […]}, {"vector": […], "text": "…"} or {"a": …, '
            '"b": …, "label": 1}, where `a` and `b` are vectors, or row numbers (from 0) of posted vectors',
        },
        NPY: {
            "type": "string",
            "format": "binary",
            "description": "for encoders whose users bring vectors: numpy's .npy of shape (vectors, dimensions), "
            "float16, 32 or 64",
        },
        **FILE_TYPES,
    },
    CalibrateOptions,
)


def facts_of(job: Job, answer: type[JobState | MatchState]) -> dict[str, Any]:
    """The fields of an answer that a job has under the same names."""
    match = {} if job.request.match is None else vars(job.request.match)
    facts = vars(job.request) | match | vars(job) | {"job": job.id}
    return {one.name: facts[one.name] for one in fields(answer) if one.name in facts}


def state(job: Job) -> JobState:
    return JobState(**facts_of(job, JobState))


@router.post(
    "",
    status_code=202,
    response_model=JobAccepted,
    dependencies=[needs("calibrate", body="file")],
    openapi_extra=BODY_DOC,
)
async def calibrate(
    request: Request,
    service: ServiceDep,
    trace: TraceDep,
    reading: ReadingDep,
    idempotency_key: Annotated[str | None, Header(max_length=256)] = None,
) -> Response:
    """Starts a job that fits a calibration to unlabelled text of a domain."""
    await check_room(service, trace)
    check_no_form(content_type(request)[0], f"calibrate?domain={request.query_params.get('domain') or 'NAME'}")
    async with spooling() as spool:
        options = await options_of(request, service, CalibrateOptions, CALIBRATE_REQUEST)
        check_domain(options.domain, trace)
        artifact = service.encoder.artifact
        if options.encoder not in (None, artifact.digest):
            raise EncoderMismatch(
                f"encoder: this server does not run {options.encoder}; it runs {artifact.id} ({artifact.digest})"
            )
        check_takes(artifact, "json" if isinstance(options, CalibrateRequest) else reading.kind)
        if isinstance(options, CalibrateRequest):
            facts = await service.large_json(take_json, service, spool, options)
        else:
            reading = replace(reading, give="entries", labels=options.kind, brought=brought_by(artifact))
            facts = await read_body(request, service, reading, spool)
        notices = check_enough(facts, options.method, artifact.spec.dim, brought=artifact.kind == "vectors")
        notices += sent_away(service, artifact, min(facts["distinct"], MOST_SENTENCES) + 2 * facts["labels"])
        wanted = JobRequest(
            domain=options.domain,
            encoder=artifact.digest,
            encoder_id=artifact.id,
            method=options.method,
            promote=options.promote,
            seed=options.seed,
            sentences=facts["sentences"],
            labels=facts["labels"],
            kind=options.kind,
        )
        return await accept(service, trace, wanted, spool, notices, idempotency_key)


def check_takes(artifact: EncoderArtifact, form: str | None) -> None:
    """Raises InvalidInput for vectors if the encoder computes them itself, and for text if it computes no vectors."""
    if artifact.kind == "vectors" and form not in ("npy", "ndjson"):
        raise InvalidInput(
            f"encoder {artifact.id} computes no vectors; post your own, of {artifact.spec.dim} numbers each, as "
            '.npy (application/x-npy) or lines of {"vector": […]} (application/x-ndjson), with the options in the query'
        )
    if artifact.kind != "vectors" and form == "npy":
        raise InvalidInput(
            f"encoder {artifact.id} computes vectors itself, so post text; for your own vectors, register an encoder "
            "for them (isosim encoder add NAME --dimensions N) and serve it"
        )


def sent_away(service: Service, artifact: EncoderArtifact, texts: int) -> list[str]:
    """A notice if a job's texts go to another server. Raises InvalidInput if they are too many: it may charge."""
    if artifact.remote is None:
        return []
    if texts > service.settings.max_remote_texts:
        raise InvalidInput(
            f"{texts:,} texts would go to the server of encoder {artifact.id}, which may charge for each, and at most "
            f"{service.settings.max_remote_texts:,} are allowed; post fewer, or raise ISOSIM_MAX_REMOTE_TEXTS"
        )
    return [f"up to {texts:,} texts and altered copies of some of them are sent to the server of encoder {artifact.id}"]


async def options_of(
    request: Request, service: Service, options: type[Options], posted: TypeAdapter[Posted]
) -> Options | Posted:
    """What a job is asked for: a JSON body of the type `posted`, or the `options` of the query for any other body.

    Raises:
        InvalidInput: they are invalid, or a request with a JSON body has query parameters, which would be ignored.
    """
    if is_json(content_type(request)[0]):
        for name in request.query_params:
            raise InvalidInput(f"{name}: belongs in the JSON body; options go in the query only with other bodies")
        return await parsed(service, posted, await request.body())
    given = {name: value for name, value in request.query_params.items() if name in options.model_fields}
    try:
        return options.model_validate_strings(given, strict=False)  # strict is for JSON, which has numbers
    except ValidationError as error:
        raise RequestValidationError(
            [{**detail, "loc": ("query", *detail["loc"])} for detail in error.errors()]
        ) from None


CALIBRATE_REQUEST = TypeAdapter(CalibrateRequest)


def take_json(service: Service, spool: Spool, body: CalibrateRequest | LabelsRequest) -> dict[str, Any]:
    """Spools the sentences and labels of a JSON body and returns their counts."""
    settings = service.settings
    limits = Limits(settings.max_characters, settings.max_calibration_sentences, settings.max_calibration_bytes)
    intake = Intake(limits, spool.lines, kind=body.kind, place=place)
    if isinstance(body, CalibrateRequest):
        intake.take((f"texts.{row}", text) for row, text in enumerate(body.texts))
    intake.take((f"labels.{row}", LabelledPair(*label)) for row, label in enumerate(body.labels))
    intake.close(labels=isinstance(body, LabelsRequest))
    return intake.facts


@router.get("", response_model=Jobs, dependencies=READ)
async def list_jobs(
    service: ServiceDep, trace: TraceDep, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Response:
    """Recorded jobs of the domains that the key may use, newest first, without their reports."""
    return await service.listings(trace.grant, listed, service.jobs, trace.grant, limit)


def listed(jobs: JobStore, grant: Grant, limit: int) -> Response:
    """The answer as JSON; called in a thread, because reading the records of 1,000 jobs takes a second."""
    mine = (job for job in jobs.newest() if job.request.match is None and grant.may_use(job.request.domain))
    return json_response({"jobs": [*map(state, islice(mine, limit))]})


@router.get("/{job_id}", response_model=JobState, dependencies=READ)
async def get_job(job: JobDep) -> Response:
    """A job's state and progress, with its report or its error once it has ended."""
    return json_response(state(job))


async def stream_place(job_id: JobId, service: ServiceDep, trace: TraceDep) -> AsyncIterator[None]:
    """Takes a place for an event stream until the answer ends. Raises Overloaded if all are taken, or this key's share
    of them."""
    streams = service.event_streams
    remedy = f"ask for the state of job {job_id[:64]} instead"
    streams.check(trace.grant, service.share(streams.most), "event streams are open", remedy)
    with streams.taken(trace.grant):
        yield


STREAM = [*READ, Depends(stream_place)]


@router.get("/{job_id}/events", dependencies=STREAM, response_class=EventSourceResponse)
async def job_events(job: JobDep, service: ServiceDep) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events with the job's state at each change. The stream ends when the job ends, or when the server
    stops. A comment every 15 s keeps the connection open."""
    async for event in changes(service, job.id, state):
        yield event


Show = Callable[[Job], JobState | MatchState]


async def changes(service: Service, job_id: str, show: Show) -> AsyncIterator[ServerSentEvent]:
    """The states of a job, at each change, until it ends or the server stops."""

    def look() -> tuple[Job, JobState | MatchState]:
        job = service.jobs.read(job_id)
        return job, show(job)

    last = None
    while True:
        job, now = await service.job_reads(look)
        if now != last:
            yield ServerSentEvent(data=now, event="state")
            last = now
        if job.status.ended or service.phase is not Phase.SERVING:
            return
        await asyncio.sleep(DISTANT_EVENT_SECONDS if service.jobs.distant else EVENT_SECONDS)


@router.delete("/{job_id}", response_model=JobState, dependencies=CALIBRATE)
async def cancel_job(job: JobDep, service: ServiceDep) -> Response:
    """Cancels a job: its text is deleted, and it makes no version. A worker that runs it stops within 10 s."""
    return json_response(state(await service.store(service.jobs.cancel, job.id)))


# Jobs that have not ended may keep the bytes of this many posts of ISOSIM_MAX_CALIBRATION_BYTES: 2.5 GB, a quarter of
# the chart's default volume (k8s/isosim/values.yaml). The last one may exceed it.
FULL_POSTS = 25


async def check_room(service: Service, trace: Trace) -> None:
    """Raises Unavailable if this server should run calibrations and cannot, Overloaded if too many jobs wait."""
    if service.settings.local_worker and importlib.util.find_spec("torch") is None:
        raise Unavailable(
            "this server cannot run calibrations: install PyTorch in its Python environment (pip install "
            "'isosim[train]'), or run workers elsewhere (isosim worker) and set ISOSIM_LOCAL_WORKER=false"
        )
    await service.store(lambda: identify(service.jobs.blobs))  # else a lost volume's place would be filled
    await service.store(lambda: check_backlog(service, trace.grant, service.jobs.index()))


def check_backlog(service: Service, grant: Grant, entries: Sequence[OpenJob]) -> None:
    """Raises Overloaded if these jobs, which have not ended, are too many for another one, or keep too much text on
    disk: those of all keys together, or of this one (ShareUsed)."""
    most, room = service.settings.max_queued_jobs, FULL_POSTS * service.settings.max_calibration_bytes
    backlogs = [(Overloaded, "", entries, most, room)]
    if service.shared:
        mine = [entry for entry in entries if entry.owner == owner_name(grant.id)]
        remedy = " for the API key; wait until one has ended, or cancel one: DELETE /calibrate/{job} or /matches/{job}"
        backlogs.append((ShareUsed, remedy, mine, service.share(most), service.share(room)))
    for full, remedy, jobs, most, room in backlogs:
        held = sum(job.size for job in jobs)
        if len(jobs) >= most:
            raise full(f"{len(jobs)} jobs are queued or running; the limit is {most}{remedy}", retry_after=60)
        if held >= room:
            raise full(f"jobs hold {megabytes(held)} of text; the limit is {megabytes(room)}{remedy}", 60)


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


@asynccontextmanager
async def spooling() -> AsyncIterator[Spool]:
    """An upload's temporary files (its spool). They are opened and closed in a thread: if the disk hangs, the event
    loop still serves other requests."""
    spool = await asyncio.to_thread(Spool)
    try:
        yield spool
    finally:
        await asyncio.shield(asyncio.to_thread(spool.close))  # must run even if a disconnect cancels this task


def check_domain(domain: str, trace: Trace) -> None:
    """Raises InvalidInput if the name includes a version, Forbidden if the key may not use the domain."""
    if DomainRef.parse(domain) != DomainRef(domain):
        raise InvalidInput(f"domain {domain!r}: a calibration makes a new version; send the name without a version")
    trace.grant.check_domain(domain)


async def accept(
    service: Service,
    trace: Trace,
    wanted: JobRequest,
    spool: Spool,
    notices: list[str],
    idempotency_key: str | None,
    route: str = "/calibrate",
    **facts: Any,
) -> Response:
    """Creates a job from the spooled input and answers 202. If the request repeats an idempotency key, the answer names
    the job of the first request. `route` has the job's state; `facts` are added to the answer.

    Each API key has its own idempotency keys, so that callers cannot use or discover those of others.

    Raises:
        Conflict: the idempotency key was used for another request.
        Overloaded: the queue has filled up meanwhile.
    """
    wanted = replace(wanted, epoch=(await service.store(service.domains.read, wanted.domain)).epoch)
    grant, texts = trace.grant, wanted.sentences + 2 * wanted.labels - 1  # `needs` has charged one text
    admit = partial(check_backlog, service, grant)

    async def create() -> Job:
        made = None
        try:
            await service.limits.owe(grant, texts)
            made = await service.store.within(
                LONG, service.jobs.create, wanted, spool, notices, idempotency_key, grant.id, admit
            )
        finally:
            if made is None or made.input != spool.id:
                await service.limits.owe(grant, -texts)
        await service.hint(made)
        return made

    creation = asyncio.create_task(create())
    try:
        job = await asyncio.shield(creation)
    except asyncio.CancelledError:  # the caller has left; the spool, which is being read, must stay open
        await asyncio.wait([creation])
        raise
    accepted = {"job": job.id, "domain": job.request.domain, "status": job.status.value, **facts}
    return json_response(accepted, 202, {"Location": f"{route}/{job.id}"})
