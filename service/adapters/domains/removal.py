"""Deletes a whole domain: its versions, its move to another encoder, and the calibrations that would make it again."""

import contextlib

from service.adapters.domains.migrations import ATTEMPTS, MigrationStore
from service.adapters.domains.store import DomainStore
from service.adapters.jobs.store import JobStore
from service.core.errors import Conflict, NotFound, UnknownDomain
from service.core.jobs.job import Job, Status
from service.core.scoring.registry import DEFAULT


def remove_domain(domains: DomainStore, jobs: JobStore, migrations: MigrationStore, domain: str) -> list[Job]:
    """Deletes a domain. May be repeated: it answers the same, and completes what an earlier call could not do.

    Returns:
        Calibrations whose end this call has decided; the caller stops what runs of them, then cancels them.

    Raises:
        UnknownDomain: there never was such a domain.
        Conflict: it is `default`, which cannot be deleted; or other processes keep changing it.
        CorruptArtifact: the migrations cannot be read; nothing was changed.
    """
    if domain == DEFAULT:
        raise Conflict(f"domain {DEFAULT!r} cannot be deleted: requests that name no domain are answered by it")
    moving = domain in migrations.all()
    mine = [job for job in jobs.all() if job.request.domain == domain]
    unfinished = [job for job in mine if not job.status.ended]
    if not moving and not unfinished and not domains.was_there(domain):
        raise UnknownDomain(domain)
    domains.remove(domain)  # first: from here on no calibration that began before can publish
    ended = []
    for job in unfinished:
        with contextlib.suppress(NotFound):  # its record went meanwhile
            # One that is publishing has decided its end itself; it finds the domain deleted, and fails.
            if jobs.decide(job.id) or job.status is not Status.RUNNING:
                ended.append(job)
    for _ in range(ATTEMPTS):
        migration = migrations.all().get(domain)
        if migration is None:
            break
        with contextlib.suppress(Conflict):  # another process changed it; look again
            migrations.set(domain, None, expected=migration)
    jobs.free_keys({job.id for job in mine})  # a text that is posted again with its key is a new calibration
    return ended
