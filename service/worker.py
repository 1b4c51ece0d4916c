"""The calibration worker: one job function, reached from RQ or as a child process of the API."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.adapters.job_store import JobStore
from service.core.errors import Conflict, IsosimError, JobCancelled
from service.core.jobs import Job, Status
from service.settings import Settings

log = logging.getLogger(__name__)

HEARTBEAT = 2.0  # s
NICENESS = 19


class Reporter:
    """Writes a running job's progress and heartbeat; notices that the job was cancelled."""

    def __init__(self, jobs: JobStore, job: Job) -> None:
        self.jobs, self.job = jobs, job
        self._lock = threading.Lock()
        self._written = 0.0
        self._cancelled = False

    def __call__(self, stage: str, progress: float) -> None:
        """Raises JobCancelled once somebody has decided the job's end."""
        if self._cancelled:
            raise JobCancelled(self.job.id)
        fresh = stage != self.job.stage
        self.job = replace(self.job, stage=stage, progress=progress)
        if fresh or time.monotonic() - self._written > 0.25:
            self.beat()

    def beat(self) -> None:
        with self._lock:
            # The record is this attempt's only while it says so: an orphan must not write over its successor.
            record = self.jobs.read(self.job.id)
            mine = record.attempt == self.job.attempt and record.status is Status.RUNNING
            if not mine or self.jobs.decided(self.job.id):
                self._cancelled = True
                return
            self.job = replace(self.job, heartbeat=time.time())
            self.jobs.write(self.job)
            self._written = time.monotonic()

    def still_mine(self) -> bool:
        self.beat()
        return not self._cancelled

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats while a long step says nothing; the process ends when its parent has gone."""
        ended = threading.Event()
        parent = os.getppid()

        def run() -> None:
            while not ended.wait(HEARTBEAT):
                if os.getppid() != parent:
                    os._exit(1)  # orphaned: nobody would stop or count this job any more
                try:
                    self.beat()
                except (OSError, IsosimError):  # a store that is away for a moment must not end the heartbeat
                    log.exception("no heartbeat for job %s", self.job.id)

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def run_job(settings: Settings, job_id: str) -> Job:
    """Runs a stored job to its end and returns the record. What goes wrong inside is recorded, not raised.

    Raises:
        JobCancelled: the job had ended, or was cancelled meanwhile.
        Conflict: another worker is at it.
    """
    jobs = JobStore(settings.model_store)
    domains = DomainStore(settings.model_store)
    reporter = Reporter(jobs, jobs.begin(job_id))
    try:
        with reporter.beating():
            # Here and not above: the RQ parent and the settings stay light, torch loads in the child alone. And not
            # before the job has begun: a time-out or a broken installation would leave it queued, with its text.
            from service.modelling.job import Posted, calibrate_job  # noqa: PLC0415

            encoder = EncoderStore(settings.model_store).find(
                f"{reporter.job.request.encoder_id}@{reporter.job.request.encoder}"
            )
            posted = Posted(jobs.texts(job_id), jobs.labels(job_id))
            result = calibrate_job(
                reporter.job.request, posted, encoder, domains, reporter, threads=settings.worker_threads
            )
    except JobCancelled:
        raise
    except IsosimError as error:
        return fail(jobs, reporter.job, str(error))
    except Exception as error:  # the boundary: whatever ends a fit is the job's end, and the caller reads why
        log.exception("job %s failed", job_id)
        return fail(jobs, reporter.job, f"{type(error).__name__}: {error}")
    # From here on a cancel comes too late; before it, nothing has been published.
    if not reporter.still_mine() or not jobs.decide(job_id):
        raise JobCancelled(f"job {job_id} was cancelled")
    try:
        version, promoted, why = result.publish(domains)
    except (IsosimError, OSError) as error:
        log.exception("job %s could not publish", job_id)
        return jobs.end(reporter.job, Status.FAILED, error=str(error))
    report = {**result.report, "promotion": why}
    done = jobs.end(reporter.job, Status.SUCCEEDED, version=version, promoted=promoted, report=report)
    tidy(settings, jobs, domains, done.request.domain)
    return done


def tidy(settings: Settings, jobs: JobStore, domains: DomainStore, domain: str) -> None:
    """Old versions and records go; if they cannot, the job has succeeded all the same."""
    try:
        domains.prune(domain, settings.keep_versions)
        jobs.forget(settings.keep_jobs)
    except (IsosimError, OSError):
        log.exception("tidying after a calibration of %s failed", domain)


def step_back() -> None:
    """Lets a calibration have what scoring leaves: the idle scheduling class where there is one, else low priority."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError, AttributeError):  # another system, or one that forbids it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def fail(jobs: JobStore, job: Job, message: str) -> Job:
    if not jobs.decide(job.id):
        raise JobCancelled(f"job {job.id} was cancelled")
    return jobs.end(job, Status.FAILED, error=message)


def run_queued(job_id: str) -> str:
    """RQ's entry: a job that ended or failed by itself is done for RQ; a killed one is retried."""
    settings = Settings()
    jobs = JobStore(settings.model_store)
    if jobs.read(job_id).status in (Status.RUNNING, Status.INTERRUPTED):
        # RQ hands a job out again only after its worker has died.
        jobs.interrupt(job_id)
        jobs.requeue(job_id)
    try:
        return run_job(settings, job_id).status.value
    except (JobCancelled, Conflict) as error:
        log.warning("job %s not run: %s", job_id, error)
        return Status.CANCELLED.value


def serve_queue(settings: Settings, *, burst: bool = False) -> None:
    """An RQ worker that runs until it is told to stop."""
    from redis import Redis  # noqa: PLC0415 - local children need neither
    from rq import Queue, Worker  # noqa: PLC0415

    from service.adapters.rq_jobs import QUEUE  # noqa: PLC0415

    assert settings.redis_address is not None  # noqa: S101 - the command line has checked
    connection = Redis.from_url(settings.redis_address)
    step_back()
    Worker([Queue(QUEUE, connection=connection)], connection=connection).work(
        burst=burst, with_scheduler=False, logging_level=settings.log_level.upper()
    )


def main() -> None:
    """A child of the API: `python -m service.worker JOB`."""
    with contextlib.suppress(PermissionError):  # a session's leader leads its group already
        os.setpgid(0, 0)  # to be stopped with all that it starts
    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")
    step_back()
    try:
        run_job(Settings(), sys.argv[1])
    except (JobCancelled, Conflict) as error:
        log.warning("%s", error)


if __name__ == "__main__":
    main()
