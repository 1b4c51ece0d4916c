"""Deletes a whole domain, with calibrations that would recreate it."""

import contextlib

from isosim.domains.store import DomainStore
from isosim.errors import Conflict, NotFound, UnknownDomain
from isosim.jobs.job import Job
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import DEFAULT


def remove_domain(domains: DomainStore, jobs: JobStore, domain: str) -> list[Job]:
    """Deletes a domain and cancels its calibrations, which are returned. Safe to repeat: a second call completes an
    interrupted deletion.

    Raises:
        UnknownDomain: there never was such a domain.
        Conflict: the domain is `default`, which cannot be deleted; or other processes keep changing the domain.
        OSError: the store failed, perhaps at a single job.
    """
    if domain == DEFAULT:
        raise Conflict(f"domain {DEFAULT!r} cannot be deleted: requests that name no domain use it")
    unended = [job for job in jobs.unended() if job.request.domain == domain]
    if not unended and not domains.was_there(domain):
        raise UnknownDomain(domain)
    domains.remove(domain)  # first: from now on, calibrations that have already begun cannot publish
    cancelled = []
    for job in unended:
        # NotFound: the record was removed meanwhile. Conflict: the job has ended, or is about to publish; its worker
        # finds the domain deleted, and the job fails.
        with contextlib.suppress(NotFound, Conflict):
            cancelled.append(jobs.cancel(job.id))
    return cancelled
