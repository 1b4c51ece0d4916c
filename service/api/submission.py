"""A job on its way in: room for it, its body, its record, its runner."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import Request
from fastapi.responses import Response

from service.adapters.job_store import JobStore
from service.adapters.spool import Spool
from service.api.intake import Limits
from service.api.middleware import Trace
from service.api.requests import json_response
from service.api.serving import Serving
from service.api.state import Service
from service.core.calibration import DomainRef
from service.core.errors import InvalidInput, Overloaded, TooLarge, Unavailable
from service.core.jobs import Job, JobRequest, Status
from service.tracing import posting

MAX_JSON_BYTES = 16_000_000  # a JSON body is held in memory whole; text and NDJSON are streamed


async def check_room(service: Service) -> None:
    """Raises Unavailable where nothing runs jobs, Overloaded where too many wait."""
    await service.runner.available()
    await asyncio.to_thread(check_backlog, service)


def check_backlog(service: Service) -> None:
    """Raises Overloaded: waiting jobs hold their text on disk."""
    waiting, most = service.jobs.counts()[Status.QUEUED], service.settings.max_queued_jobs
    if waiting >= most:
        raise Overloaded(f"{waiting} calibrations are queued, at most {most} may be", retry_after=60)


@asynccontextmanager
async def spooling(jobs: JobStore) -> AsyncIterator[Spool]:
    """A spool, opened and closed in a thread: a volume that hangs holds up those who upload, and nobody else."""
    spool = await asyncio.to_thread(jobs.spool)
    try:
        yield spool
    finally:
        await asyncio.shield(asyncio.to_thread(spool.close))  # also where the caller has hung up


def check_domain(domain: str, trace: Trace) -> None:
    """Raises InvalidInput where a version is named, Forbidden where the key may not use the domain."""
    if DomainRef.parse(domain) != DomainRef(domain):
        raise InvalidInput(f"domain {domain!r}: a calibration makes a new version; name the domain alone")
    trace.grant.check_domain(domain)


def intake_limits(service: Service) -> Limits:
    """Before it is known which encoder the text is for: the larger vectors need more of it."""
    settings = service.settings
    dim = max(serving.encoder.spec.dim for serving in service.servings.all)
    return Limits(settings.max_calibration_sentences, settings.max_characters, dim)


def meant(service: Service, domain: str, encoder: str) -> Serving:
    """The encoder that a calibration is for. Raises EncoderMismatch; Conflict where there is no next one."""
    return service.servings.following() if encoder == "next" else service.servings.answering(domain)


async def read_json_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_JSON_BYTES:
            raise TooLarge(
                f"a JSON body may have {MAX_JSON_BYTES} bytes; post more text as text/plain or application/x-ndjson"
            )
    return bytes(body)


async def accept(
    service: Service, trace: Trace, wanted: JobRequest, spool: Spool, notices: list[str], idempotency_key: str | None
) -> Response:
    """Makes the spooled input a job, hands it over and answers 202; an idempotency key answers with its first job.

    An idempotency key is its API key's own: nobody can take another's, or learn that it was used.

    Raises:
        Conflict: the key was used for something else. Unavailable: no runner takes the job.
        Overloaded: others that were uploaded meanwhile have taken the room.
    """
    key = None if idempotency_key is None else owned(trace, idempotency_key)
    generation = await asyncio.to_thread(service.domains.generation, wanted.domain)
    wanted = replace(wanted, generation=generation)
    async with service.admission:
        await asyncio.to_thread(check_backlog, service)
        job = await asyncio.to_thread(service.jobs.create, wanted, spool, notices, key, posting.get())
    if job.status is Status.QUEUED:
        await hand_over(service, job, new=job.id == spool.id)
    accepted = {"job": job.id, "domain": job.request.domain, "status": job.status.value}
    return json_response(accepted, 202, {"Location": f"/calibrate/{job.id}"})


def owned(trace: Trace, idempotency_key: str) -> str:
    return f"{trace.grant.id} {idempotency_key}"


def accepted_before(service: Service, trace: Trace, idempotency_key: str | None) -> bool:
    """Whether a request with this key of the caller's has made a job."""
    return idempotency_key is not None and service.jobs.claims.taken(owned(trace, idempotency_key))


async def hand_over(service: Service, job: Job, *, new: bool) -> None:
    """A new job that no runner takes is no job: the caller gets the error and nothing stays behind.

    One that was accepted before stays; what failed then is only to hand it over once more.
    """
    try:
        await service.runner.submit(job.id, job.attempt)
    except Unavailable:
        if new and not await asyncio.to_thread(service.jobs.discard, job.id):
            return  # only the answer was lost: it has been taken, and has begun
        raise
