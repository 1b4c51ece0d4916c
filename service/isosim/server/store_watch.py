"""Background tasks of a server that poll the model store for new champions, and for jobs that ended or were lost, and
that count its domains."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections import Counter

from isosim.api.state import Service
from isosim.jobs.job import Status
from isosim.server import announcements

log = logging.getLogger("isosim")

POLL_SECONDS = 0.5  # seconds between looks for new champions; in a bucket, each is one HEAD
COUNT_SECONDS = 10.0  # seconds between counts of recorded jobs; a count reads all jobs that have not ended
DISTANT_COUNT_SECONDS = 30.0  # seconds between counts if the jobs are in object storage, which charges for each read
LIST_SECONDS = 300.0  # seconds between listings of the domains; each costs a request for 1,000 domains in a bucket
# Seconds between removals of old jobs and of unused results; in object storage each costs as much as two counts.
SWEEP_SECONDS, DISTANT_SWEEP_SECONDS = 60.0, 600.0


async def watch(service: Service) -> None:
    """Runs the watches at the same time, because `watch_jobs` may wait for Redis, and a listing takes long."""
    async with asyncio.TaskGroup() as all_of_them:
        all_of_them.create_task(watch_champions(service), name="champions-watch")
        all_of_them.create_task(watch_jobs(service), name="jobs-watch")
        all_of_them.create_task(watch_domains(service), name="domains-watch")


async def watch_champions(service: Service) -> None:
    """Polls for new champions. Logs once when the store cannot be read, and once when it is read again.

    `champions_current` stays behind while the store cannot be read, while a read hangs, and while a promoted champion
    cannot be loaded.
    """
    away = False
    service.champions_current = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            await service.registry.refresh()
        # An unreachable volume or a damaged file must not end the loop, because a later pass may succeed. Until
        # then, the loaded versions serve requests.
        except Exception:
            if not away:
                log.exception("the model store could not be read")
            away = True
        else:
            if away:
                log.warning("the model store is read again")
            away = False
            if not service.registry.behind:
                # The start of the read, because the read may miss a promotion that is made meanwhile.
                service.champions_current = began
        await asyncio.sleep(POLL_SECONDS)


async def watch_domains(service: Service) -> None:
    """Counts the domains, and logs the first count.

    While the store cannot be read, the last count stays: `watch_champions` reports this.
    """
    while True:
        # As in `watch_champions`, the loop must go on. An error that leaves it would end the other watches too.
        with contextlib.suppress(Exception):
            found = len(await asyncio.to_thread(service.champions.read))
            if service.domains_listed is None:
                # Fewer than before the restart, or another `store_id` in the line "starting": a store is lost.
                announcements.say("model store listed", domains=found)
            service.domains_listed = found
        await asyncio.sleep(LIST_SECONDS)


async def watch_jobs(service: Service) -> None:
    """Counts jobs for the metrics, once also those that ended since the last count; deletes old records and results."""
    known: set[tuple[str, str | None]] | None = None  # id and end of the jobs that had ended at the last count
    distant = service.jobs.distant
    pause, sweep = (DISTANT_COUNT_SECONDS, DISTANT_SWEEP_SECONDS) if distant else (COUNT_SECONDS, SWEEP_SECONDS)
    swept = -sweep
    while True:
        try:
            jobs = await asyncio.to_thread(service.jobs.newest)
            if not distant:
                volume = await asyncio.to_thread(shutil.disk_usage, service.jobs.blobs.address)
                service.store_free = volume.free / volume.total
            silent = service.jobs.silent
            service.metrics.observe_jobs(Counter(Status.QUEUED if job.id in silent else job.status for job in jobs))
            ended = {(job.id, job.finished): job for job in jobs if job.status.ended}
            for one in ended.keys() - (ended.keys() if known is None else known):
                service.metrics.observe_job_end(ended[one])
            known = set(ended)
            if time.monotonic() - swept > sweep:
                await asyncio.to_thread(service.jobs.sweep)
                await asyncio.to_thread(service.results.sweep)
                swept = time.monotonic()
        except Exception:  # the loop must go on, as in `watch_champions`
            log.exception("the jobs in the model store could not be read")
        await asyncio.sleep(pause)
