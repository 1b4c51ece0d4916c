"""Deletes a whole domain, with calibrations that would recreate it."""

import contextlib

from isosim.domains.store import DomainStore
from isosim.errors import Conflict, NotFound, UnknownDomain
from isosim.jobs.job import Job, Status
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import DEFAULT


def remove_domain(domains: DomainStore, jobs: JobStore, domain: str) -> list[Job]:
    """Deletes a domain. Safe to repeat: a second call completes an interrupted deletion.

    Returns:
        The calibrations to cancel. The caller must first stop the running ones, then call `JobStore.cancel` for each.

    Raises:
        UnknownDomain: there never was such a domain.
        Conflict: the domain is `default`, which cannot be deleted; or other processes keep changing the domain.
    """
    if domain == DEFAULT:
        raise Conflict(f"domain {DEFAULT!r} cannot be deleted: requests that name no domain use it")
    mine = [job for job in jobs.all() if job.request.domain == domain]
    unfinished = [job for job in mine if not job.status.ended]
    if not unfinished and not domains.was_there(domain):
        raise UnknownDomain(domain)
    domains.remove(domain)  # first: from now on, calibrations that have already begun cannot publish
    ended = []
    for job in unfinished:
        with contextlib.suppress(NotFound):  # the job's record was removed meanwhile
            # `decide` returns False if another process is already ending the job: for example, a worker is about to
            # publish a version. If this job is still running, it is not cancelled here: its worker finds the domain
            # deleted, and the job fails.
            if jobs.decide(job.id) or job.status is not Status.RUNNING:
                ended.append(job)
    # Removes the idempotency keys of the domain's jobs. A POST that repeats a key then starts a new calibration instead
    # of returning the old job.
    jobs.free_keys({job.id for job in mine})
    return ended
