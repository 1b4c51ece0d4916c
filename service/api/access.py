"""From a request to what its key lets it reach: the one place where a domain, a job or a budget is asked for."""

import asyncio
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path

from service.api.requests import TraceDep
from service.api.state import Service, ServiceDep
from service.api.trace import Trace
from service.core.errors import NotFound
from service.core.jobs.job import Job
from service.core.scoring.calibration import DOMAIN_NAME, DomainRef
from service.migration.encoders import Resolution


async def resolve(service: Service, trace: Trace, ref: DomainRef | str, *, splits: bool = False) -> Resolution:
    """What answers for a domain, if the request's key may use it. No route resolves a domain in another way.

    `splits`: the request asks for scores, and so takes part where a domain's requests are split between two encoders.
    Vectors do not: an index must not hold vectors of two encoders side by side.

    Raises:
        InvalidInput: the text names no domain.
        Forbidden: the key may not use it, whether it exists or not.
        NotFound, EncoderMismatch, CorruptArtifact: as the registry says.
    """
    ref = DomainRef.parse(ref) if isinstance(ref, str) else ref
    trace.grant.check_domain(ref.name)
    unread = trace.grant.rate is not None and not service.encoders.holds(ref)
    if unread:  # the store is asked: a name that is not there costs a text, one that is there costs nothing more
        await service.limits.admit(replace(trace.grant, concurrent=None), 1)
    resolution = await service.encoders.resolve(ref, trace.split_key if splits else None)
    if unread:
        await service.limits.owe(trace.grant, -1)
    if splits and resolution.side is not None:
        service.metrics.observe_split(ref.name, resolution.side)
    return resolution


async def permitted_domain(
    domain: Annotated[str, Path(pattern=f"^{DOMAIN_NAME}$", examples=["default"])], trace: TraceDep
) -> str:
    trace.grant.check_domain(domain)
    return domain


DomainName = Annotated[str, Depends(permitted_domain)]  # of a path


async def permitted_job(
    job_id: Annotated[str, Path(examples=["2f1c0f5e8a9b4c7d9e0f1a2b3c4d5e6f"])], service: ServiceDep, trace: TraceDep
) -> Job:
    """The job of a path. Another key's job is not there: its number names no domain that could be forbidden."""
    job = await asyncio.to_thread(service.jobs.read, job_id)
    if not trace.grant.may_use(job.request.domain):
        raise NotFound(f"no calibration job {job_id[:64]!r}")
    return job


JobDep = Annotated[Job, Depends(permitted_job)]
