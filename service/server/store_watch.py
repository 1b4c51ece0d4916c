"""What a server looks for in the model store while it serves: champions, and jobs that ended or were lost."""

import asyncio
import logging
import time

from service.adapters.jobs.census import JobCensus
from service.api.state import Service

log = logging.getLogger("isosim")

COUNT_SECONDS = 10.0  # between counts of the jobs on record; each reads all of them
EXPIRE_SECONDS = 60.0  # between looks for jobs that were interrupted long ago, and for text of dead processes


async def watch(service: Service, census: JobCensus) -> None:
    """Both at once: whatever holds up the one, a Redis that hangs, does not hold up the other."""
    async with asyncio.TaskGroup() as both:
        both.create_task(watch_champions(service), name="champions-watch")
        both.create_task(watch_jobs(service, census), name="jobs-watch")


async def watch_champions(service: Service) -> None:
    """Sees new champions and migrations. A store that is away is said once, and once that it is back.

    A metric says how long ago all champions in memory were known to be the store's. It grows while the store cannot be
    read, while a look hangs, and while a champion that was promoted cannot be loaded.
    """
    away, current = False, time.monotonic()
    service.metrics.champions_age.read = lambda: time.monotonic() - current
    while True:
        began = time.monotonic()
        try:
            await service.encoders.refresh()
        except Exception:  # the loop's boundary: the volume is away, a file is odd; what is loaded keeps serving
            if not away:
                log.exception("the model store could not be read")
            away = True
        else:
            if away:
                log.warning("the model store is read again")
            away = False
            if not service.encoders.behind:
                current = began  # what was promoted during the look may have been missed
        await asyncio.sleep(service.settings.poll_seconds)


async def watch_jobs(service: Service, census: JobCensus) -> None:
    """Counts jobs for the metrics, hands those over again that Redis has lost, ends those whose text nobody will want
    any more, and forgets old ones."""
    counted = expired = -EXPIRE_SECONDS
    while True:
        try:
            if time.monotonic() - counted > COUNT_SECONDS:
                census_of_jobs = await asyncio.to_thread(census.take)
                service.metrics.observe_jobs(census_of_jobs.counts)
                for job in census_of_jobs.ended:
                    service.metrics.observe_job_end(job)
                await service.runner.recover(census_of_jobs.queued)
                counted = time.monotonic()
            if time.monotonic() - expired > EXPIRE_SECONDS:
                await asyncio.to_thread(service.jobs.forget, service.settings.keep_jobs)  # first: it needs no room
                await asyncio.to_thread(service.jobs.expire, service.settings.keep_interrupted)
                expired = time.monotonic()
        except Exception:  # the loop's boundary, as above
            log.exception("the jobs in the model store could not be read")
        await asyncio.sleep(service.settings.poll_seconds)
