"""The calibration worker: runs jobs from RQ's queue, or one job as a child process of the API."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderStore
from isosim.errors import Conflict, IsosimError, JobCancelled, NotFound, Unavailable
from isosim.jobs.job import Job, JobRequest, Status
from isosim.jobs.requirements import Allowance
from isosim.jobs.store import JobStore, killed
from isosim.observability import setup as logs
from isosim.observability.lines import about
from isosim.observability.setup import tracing
from isosim.settings import Settings
from isosim.store.blobs import opened

if TYPE_CHECKING:
    from isosim.fitting.publication import Result
    from isosim.observability.otlp import JobSpan

log = logging.getLogger(__name__)

HEARTBEAT = 2.0  # seconds between heartbeats of a job
DISTANT_HEARTBEAT = 5.0  # seconds between heartbeats in object storage, which charges for each write
WATCHED = 5  # an attempt counts as dead after this many heartbeat intervals without a heartbeat
NICENESS = 19  # lowest priority
PATIENCE = 600.0  # seconds that a worker waits for object storage to answer again
AGAIN = 3  # maximum number of retries of a job if object storage fails


def heartbeat(jobs: JobStore) -> float:
    """Seconds between heartbeats of a running job."""
    return DISTANT_HEARTBEAT if jobs.distant else HEARTBEAT


class Reporter:
    """Writes a running job's progress and heartbeat, and notices if the job is cancelled."""

    def __init__(self, jobs: JobStore, job: Job, on_stage: Callable[[str], None] = lambda _: None) -> None:
        self.jobs, self.job, self.on_stage = jobs, job, on_stage
        self.pause = 1.0 if jobs.distant else 0.25  # seconds between writes of the progress
        self._lock = threading.Lock()
        self._written = 0.0
        self._failing = False
        self._cancelled = False

    def __call__(self, stage: str, progress: float) -> None:
        """Reports a stage and its progress (0 to 1). Raises JobCancelled if the job was cancelled or taken over."""
        if self._cancelled:
            raise JobCancelled(self.job.id)
        with self._lock:  # the heartbeat's thread also replaces `self.job`
            fresh = stage != self.job.stage
            self.job = replace(self.job, stage=stage, progress=progress)
        if fresh:
            self.on_stage(stage)
        if fresh or time.monotonic() - self._written > self.pause:
            self.try_to_beat()

    def try_to_beat(self) -> None:
        """Writes a heartbeat. If the store fails, the job and its heartbeats continue; the failure is logged once."""
        try:
            self.beat()
        except (OSError, IsosimError):
            self._written = time.monotonic()  # so that `__call__` tries again only after `pause`
            if not self._failing:
                log.exception("the heartbeat of job %s cannot be written; the job goes on", self.job.id)
            self._failing = True
        else:
            if self._failing:
                log.info("the heartbeat of job %s can be written again", self.job.id)
            self._failing = False

    def beat(self) -> None:
        with self._lock:
            # `jobs.beat` writes nothing if another attempt of the job has taken over the record.
            job = replace(self.job, heartbeat=time.time())
            if not self.jobs.beat(job):
                self._cancelled = True
                return
            self.job = job
            self._written = time.monotonic()

    def still_mine(self) -> bool:
        self.beat()
        return not self._cancelled

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Writes heartbeats from a thread during long steps. Exits the process if its parent process has died."""
        ended = threading.Event()
        parent = os.getppid()

        def run() -> None:
            while not ended.wait(heartbeat(self.jobs)):
                if os.getppid() != parent:
                    os._exit(1)  # without its parent, this process would never be stopped
                self.try_to_beat()

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def run_job(settings: Settings, job_id: str, handed: int | None = None, dead: int | None = None) -> Job:
    """Runs a stored job to its end and returns its record. Failures of the calibration are recorded, not raised.

    Args:
        handed: number of attempts that had begun when the job was queued (see `JobStore.begin`); None: no queue.
        dead: number of the attempt whose process has died (1: the first attempt). This call may replace the attempt.
            None: no process has died.

    Raises:
        JobCancelled: the job had ended, was cancelled, or was taken over by another attempt.
        Conflict: another worker runs the job, or the job was queued again.
    """
    jobs = JobStore(settings.jobs_root)
    with observed(settings, jobs, job_id) as watched:
        champion = champion_of(settings, jobs.read(job_id).request)
        begun = jobs.begin(job_id, handed, dead, champion)
        watched.job = run_attempt(settings, jobs, begun, watched.stage)
        for _ in range(AGAIN):
            if watched.job.status is not Status.INTERRUPTED or not jobs.distant:
                break
            jobs.requeue(job_id)  # object storage has failed, but may recover
            watched.job = run_attempt(settings, jobs, jobs.begin(job_id), watched.stage)
        return watched.job


def champion_of(settings: Settings, request: JobRequest) -> int | None:
    """The domain's champion; None if the domain has none, or if the champion cannot be read.

    Errors are ignored here, because publishing reads the champion again and reports errors.
    """
    with contextlib.suppress(IsosimError, OSError):
        return DomainStore(opened(settings.model_store)).read(request.domain).served(request.encoder).champion
    return None


def run_attempt(settings: Settings, jobs: JobStore, begun: Job, on_stage: Callable[[str], None]) -> Job:
    domains = DomainStore(opened(settings.model_store))
    reporter = Reporter(jobs, begun, on_stage)
    try:
        done = published_before(jobs, domains, reporter.job)
        if done is not None:
            return done
        result = fit(settings, jobs, domains, reporter)
        # The job can be cancelled until `decide`. Nothing is published before `decide`.
        if not reporter.still_mine() or not jobs.decide(begun.id, reporter.job.attempt):
            raise JobCancelled(f"job {begun.id} was cancelled")
    except JobCancelled:
        raise
    except IsosimError as error:
        return fail(jobs, reporter.job, str(error))
    except OSError as error:
        wait_for_storage(domains)
        if jobs.decided(begun.id):
            raise JobCancelled(f"job {begun.id} was cancelled") from error
        return put_off(jobs, reporter.job, error)
    except Exception as error:  # any error must end the job, and its record must give the reason
        log.exception("job %s failed", begun.id)
        return fail(jobs, reporter.job, f"{type(error).__name__}: {error}")
    done = publish_result(jobs, domains, reporter.job, result)
    if done.status is Status.SUCCEEDED:
        tidy(settings, jobs, domains, done.request.domain)
    return done


def fit(settings: Settings, jobs: JobStore, domains: DomainStore, reporter: Reporter) -> "Result":
    """Fits the calibration to the job's text, but does not publish it."""
    job = reporter.job
    if not jobs.has_text(job.id):
        raise Unavailable("the posted text is gone; post it again")
    if domains.read(job.request.domain).epoch != job.request.epoch:
        raise Conflict(f"domain {job.request.domain!r} was deleted after this calibration began")
    with reporter.beating():
        # Imported here, so that only the child process loads torch. On a busy machine, this import can take longer than
        # SILENCE (30 s). Without the heartbeats of `beating`, the job would then count as interrupted.
        from isosim.fitting.job import CalibrationInput, calibrate_job  # noqa: PLC0415
        from isosim.jobs.vector_files import NpyFile  # noqa: PLC0415

        encoder = EncoderStore(settings.model_store).find(f"{job.request.encoder_id}@{job.request.encoder}")
        remedy = "post fewer, or raise ISOSIM_MAX_REMOTE_TEXTS of the worker"
        sending = Allowance(encoder.id, settings.max_remote_texts, remedy)
        with jobs.vectors(job.id) as vectors:
            brought = None if vectors is None else NpyFile(vectors, "the posted vectors")
            posted = CalibrationInput(jobs.texts(job.id), jobs.labels(job.id), brought)
            return calibrate_job(
                job.request, posted, encoder, domains, reporter, threads=settings.worker_threads, sending=sending
            )


def publish_result(jobs: JobStore, domains: DomainStore, job: Job, result: "Result") -> Job:
    """Publishes the version and ends the job as succeeded, as failed, or (after a storage failure) as interrupted."""
    try:
        version, promoted, why = result.publish(domains, job)
        return succeed(jobs, job, version, {**result.report, "promotion": why}, promoted=promoted)
    except JobCancelled:  # another attempt of the job publishes instead
        raise
    except IsosimError as error:
        log.exception("job %s could not publish its version", job.id)
        return jobs.end(job, Status.FAILED, error=str(error))
    except OSError as error:
        wait_for_storage(domains)
        return put_off(jobs, job, error)


def succeed(jobs: JobStore, job: Job, version: int, report: dict[str, Any], *, promoted: bool) -> Job:
    """Ends the job as succeeded. If the report has a notice about labels, it is added to the job's notices."""
    labels = report.get("labels") or {}
    notices = [*job.notices, labels["notice"]] if "notice" in labels else job.notices
    return jobs.end(job, Status.SUCCEEDED, version=version, promoted=promoted, report=report, notices=notices)


def published_before(jobs: JobStore, domains: DomainStore, job: Job) -> Job | None:
    """If an earlier attempt has already published its version, ends the job and returns it. Otherwise returns None."""
    if job.attempt == 1:
        return None
    domain = domains.read(job.request.domain)
    version = domain.made_by(job.id)
    if version is None:
        return None
    if not jobs.decide(job.id, job.attempt):
        raise JobCancelled(f"job {job.id} was cancelled")
    report = domains.report(job.request.domain, version.number)
    return succeed(jobs, job, version.number, report, promoted=version.number in domain.named())


def wait_for_storage(domains: DomainStore) -> None:
    """Waits up to PATIENCE seconds until the store answers again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            domains.log.stamp()
            return
        time.sleep(HEARTBEAT)


def put_off(jobs: JobStore, job: Job, error: OSError) -> Job:
    """Interrupts the job after a storage failure. The job's text is kept for another attempt, as the failure may be
    temporary."""
    log.error("job %s is interrupted, because storage failed: %s", job.id, error)
    return jobs.interrupt(job.id, f"storage failed ({error.strerror or error})", job.attempt)


def tidy(settings: Settings, jobs: JobStore, domains: DomainStore, domain: str) -> None:
    """Deletes old versions and job records. A failure is only logged, because the job has already succeeded."""
    try:
        domains.prune(domain, settings.keep_versions, jobs.rested_on()[domain])
        jobs.forget()
    except (IsosimError, OSError):
        log.exception("old versions of domain %s or old job records could not be deleted", domain)


def step_back() -> None:
    """Gives this process the lowest priority, so that calibrations do not delay scoring. Also uses the idle scheduling
    class if the system has one."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or not permitted
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def fail(jobs: JobStore, job: Job, message: str) -> Job:
    if not jobs.decide(job.id, job.attempt):
        raise JobCancelled(f"job {job.id} was cancelled")
    return jobs.end(job, Status.FAILED, error=message)


def run_queued(job_id: str) -> str:
    """Entry point for RQ. Returns normally also after a failed job, so that RQ retries only jobs that were killed."""
    # Imported here, because child processes of the API do not need RQ.
    from isosim.jobs.queue import Delivery  # noqa: PLC0415

    settings = Settings()
    jobs = JobStore(settings.jobs_root)
    delivery, dead = Delivery.current(), None
    try:
        # RQ delivers a job again if it considers the process of the earlier attempt dead. But if the job's record gets
        # a new heartbeat, the earlier process is still running.
        if delivery.repeated:
            begun = delivery.handed + 1
            dead = None if not delivery.killed and jobs.beats(job_id, begun, WATCHED * heartbeat(jobs)) else begun
        return run_job(settings, job_id, delivery.handed, dead).status.value
    except (JobCancelled, Conflict, NotFound) as error:
        log.warning("job %s was not run: %s", job_id, error)
        return Status.CANCELLED.value


def serve_queue(settings: Settings, *, burst: bool = False) -> None:
    """Runs an RQ worker until it is told to stop."""
    from redis import Redis  # noqa: PLC0415 - child processes of the API do not need it

    from isosim.jobs.queue import work  # noqa: PLC0415

    assert settings.redis_address is not None  # noqa: S101 - the command line has checked
    connection = Redis.from_url(settings.redis_address, socket_connect_timeout=5.0)
    step_back()
    work(connection, partial(lost, JobStore(settings.jobs_root)), settings.log_level.upper(), burst=burst)


def lost(jobs: JobStore, job_id: str, attempt: int, limit: int | None) -> None:
    """Records what became of a job whose child process was killed and that RQ will not retry: failed if the attempt
    took longer than `limit` seconds (None: it did not), otherwise interrupted.

    Changes nothing if the job was queued again or if another attempt runs. (The killed process may have been suspended
    for so long that it was considered dead.)
    """
    job = jobs.read(job_id)
    if job.status is Status.QUEUED:
        mine = job.attempt < attempt
    elif job.status is Status.RUNNING and job.attempt > attempt and jobs.distant:
        # The killed process may have begun further attempts, after object storage had failed (`run_job`).
        mine = not jobs.beats(job_id, job.attempt, WATCHED * heartbeat(jobs))
    else:
        mine = job.attempt == attempt
    if not mine:
        log.warning("attempt %d of job %s was killed, but the job's record is of another attempt", attempt, job_id)
        return
    if limit is not None:
        jobs.time_out(job_id, limit)
    if jobs.read(job_id).status in (Status.RUNNING, Status.QUEUED):
        jobs.interrupt(job_id, killed(jobs.read(job_id).stage))


JOBS = logging.getLogger("isosim.jobs")  # logger for the start, the stages and the end of a calibration

LAST_SPANS = 3.0  # seconds to send the remaining spans of a calibration


class JobObservation:
    """Logs and traces a running job. `job`: the job's record after its latest attempt; None in the first attempt."""

    def __init__(self, span: "JobSpan | None") -> None:
        self.span = span
        self.job: Job | None = None

    def stage(self, name: str) -> None:
        JOBS.debug("stage %s", name)
        if self.span is not None:
            self.span.stage(name)


@contextmanager
def observed(settings: Settings, jobs: JobStore, job_id: str) -> Iterator[JobObservation]:
    """Logs the start and end of a job. All log lines in between contain the job's id."""
    posted = jobs.read(job_id)
    request = posted.request
    what: dict[str, str | int | float | bool] = {
        "domain": request.domain,
        "method": request.method,
        "sentences": request.sentences,
    }
    traces = tracing("isosim-worker")
    span = None
    if traces is not None:
        span = traces.calibration(posted.traceparent, {f"isosim.{name}": value for name, value in what.items()})
    about.set({"job": job_id} | (span.ids if span is not None else {}))
    watched, began = JobObservation(span), time.perf_counter()
    JOBS.info("calibration begins", extra={"facts": what | {"labels": request.labels, "attempt": posted.attempt + 1}})
    try:
        yield watched
    except JobCancelled:
        tell(watched, Status.CANCELLED, time.perf_counter() - began)
        raise
    finally:
        if watched.job is not None:
            tell(watched, watched.job.status, time.perf_counter() - began)
        if traces is not None:
            traces.close(LAST_SPANS)


def tell(watched: JobObservation, status: Status, seconds: float) -> None:
    facts: dict[str, str | int | float | bool] = {"status": status.value, "seconds": round(seconds, 2)}
    if watched.job is not None and watched.job.version is not None:
        facts |= {"version": watched.job.version, "promoted": bool(watched.job.promoted)}
    JOBS.log(logging.ERROR if status is Status.FAILED else logging.INFO, "calibration ended", extra={"facts": facts})
    if watched.span is not None:
        failure = None if status in (Status.SUCCEEDED, Status.CANCELLED) else status.value
        watched.span.end({f"isosim.{name}": value for name, value in facts.items()}, failure)


def main() -> None:
    """Runs one job as a child process of the API: `python -m isosim.worker JOB`."""
    with contextlib.suppress(PermissionError):  # raised for a session leader, which already has its own group
        os.setpgid(0, 0)  # its own process group, so that the API can stop this process with all its children
    settings = Settings()
    logs.configure(settings.log_level, settings.log_format)
    step_back()
    try:
        run_job(settings, sys.argv[1])
    except (JobCancelled, Conflict) as error:
        log.warning("%s", error)


if __name__ == "__main__":
    main()
