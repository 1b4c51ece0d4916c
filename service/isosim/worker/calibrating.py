"""The child process of a worker: runs attempts of jobs (`python -m isosim.worker.calibrating SOCKET`).

It only computes and publishes. Over the socket, a file descriptor, it gets one job after the other and sends lines of
JSON:

    {"stage": …, "progress": …}       at each change
    {"alive": true}                   every PULSE seconds, also during long steps
    {"publish": true}                 it waits for the same answer before it publishes
    {"end": {"version": …, "report": …, "promoted": …}}, {"end": {"error": …}} or {"end": {"storage": …}}

The version is None for a match that publishes none.
"""

import contextlib
import logging
import os
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

import orjson

from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import Conflict, IsosimError
from isosim.jobs.job import Job
from isosim.jobs.matches import MatchStore
from isosim.jobs.posted import Posted, posted_rows
from isosim.jobs.store import JobStore
from isosim.observability import logs
from isosim.observability.logs import about
from isosim.settings import Settings
from isosim.store.blobs import address_of, opened

log = logging.getLogger("isosim.jobs")

PULSE = 2.0  # s between signs of life
NICENESS = 19  # lowest priority
FOREGROUND = "--foreground"

Facts = dict[str, str | int | float | bool]


class Link:
    """The socket to the worker. This process ends when the worker's end of it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()

    def next_job(self, jobs: JobStore) -> Job:
        job: Job = jobs.records.form.validate_python(self._next()["job"])
        return job

    def _next(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            os._exit(1)  # without its worker, this process would never be stopped
        message: dict[str, Any] = orjson.loads(line)
        return message

    def send(self, **message: Any) -> None:
        content = orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
        try:
            with self._lock:
                self._socket.sendall(content)
        except OSError:
            os._exit(1)

    def _pulse(self) -> None:
        while True:
            time.sleep(PULSE)
            self.send(alive=True)

    def report(self, stage: str, progress: float) -> None:
        self.send(stage=stage, progress=progress)

    def ask_to_publish(self) -> None:
        """Waits until the worker has recorded that the job is publishing; if it was cancelled, the worker kills this
        process."""
        self.send(publish=True)
        self._next()


def run(settings: Settings, jobs: JobStore, job: Job, link: Link) -> None:
    """Runs an attempt, logs it, and sends its end to the worker. All log lines contain the job's id."""
    request = job.request
    about.set({"job": job.id})
    what: dict[str, object] = {
        "domain": request.domain, "method": request.method, "sentences": request.sentences, "labels": request.labels,
        "attempt": job.attempt, "notices": job.notices,
    }  # fmt: skip
    log.info("%s begins", kind_of(job), extra={"facts": what})
    began = time.perf_counter()
    try:
        end = (match if request.match else calibrate)(settings, jobs, job, link)
    except Exception as error:  # any error must end the job, and its record must give the reason
        # Without the error's words, which may quote the text; the job's record has them for its owner.
        level = logging.ERROR if isinstance(error, IsosimError | OSError) else logging.CRITICAL
        log.log(level, "job %s failed", job.id, exc_info=True)
        end = reason(error, settings)
    tell(kind_of(job), end, time.perf_counter() - began)
    link.send(end=end)


def reason(error: Exception, settings: Settings) -> dict[str, str]:
    """How an attempt ends that has failed. Callers read it, so it names no path or address of the server."""
    if isinstance(error, OSError):
        return {"storage": error.strerror or type(error).__name__}
    if not isinstance(error, IsosimError):
        return {"error": f"unexpected error ({type(error).__name__}); the worker's log has it"}
    message = str(error)
    for place in filter(None, (settings.model_store, settings.seed_store)):
        message = message.replace(address_of(place), "the model store")
    return {"error": message}


def kind_of(job: Job) -> str:
    return "match" if job.request.match else "calibration"


def tell(kind: str, end: dict[str, Any], seconds: float) -> None:
    """Logs how an attempt has ended."""
    succeeded = "version" in end
    status = "succeeded" if succeeded else "failed" if "error" in end else "given back"
    facts: Facts = {"status": status, "seconds": round(seconds, 2)}
    if end.get("version") is not None:
        facts |= {"version": end["version"], "promoted": bool(end["promoted"])}
    log.log(logging.INFO if succeeded else logging.ERROR, "%s ended", kind, extra={"facts": facts})


def calibrate(settings: Settings, jobs: JobStore, job: Job, link: Link) -> dict[str, Any]:
    from isosim.fitting.job import calibrate_job  # noqa: PLC0415 - loads torch

    domains, encoder = DomainStore(opened(settings.model_store)), encoder_of(settings, job)
    check_epoch(domains, job)
    with jobs.posted(job) as folder:
        given = Posted.from_folder(folder)
        fitted = calibrate_job(job.request, given, encoder, domains, link.report, threads=settings.threads)
    link.ask_to_publish()
    published = fitted.publish(domains, job)
    report = fitted.report_with(published)
    return {"version": published.version, "promoted": published.promoted, "report": report}


def check_epoch(domains: DomainStore, job: Job) -> None:
    """Raises Conflict if the domain was deleted after the job was posted."""
    if domains.read(job.request.domain).epoch != job.request.epoch:
        raise Conflict(f"domain {job.request.domain!r} was deleted after this {kind_of(job)} began")


def match(settings: Settings, jobs: JobStore, job: Job, link: Link) -> dict[str, Any]:
    from isosim.fitting.matching import match_job  # noqa: PLC0415 - loads torch

    blobs = opened(settings.model_store)
    domains, encoder = DomainStore(blobs), encoder_of(settings, job)
    results = MatchStore(blobs, settings.keep_results)
    with jobs.posted(job) as folder:
        files = posted_rows(folder)
        made = match_job(
            job.request, files, encoder, domains, link.report, threads=settings.threads,
            show=partial(results.show, job, files),
        )  # fmt: skip
        check_epoch(domains, job)
        link.ask_to_publish()
        version, promoted = None, False
        if job.request.match is not None and job.request.match.scale == "new" and made.scale.fit is not None:
            published = made.scale.fit.publish(domains, job)
            version, promoted = published.version, published.promoted
            made.scale.facts.update(domain=job.request.domain, version=version)
        results.publish(job, files, made.found, made.scale.model, made.vectors)
    return {"version": version, "promoted": promoted, "report": made.report | {"notices": made.notices}}


def encoder_of(settings: Settings, job: Job) -> EncoderArtifact:
    store = EncoderStore.at(settings.model_store, settings.seed_store)
    return store.find(f"{job.request.encoder_id}@{job.request.encoder}")


def step_back() -> None:
    """Gives this process the lowest priority, so that calibrations do not delay scoring. Also uses the idle scheduling
    class if the system has one."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or not permitted
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """Runs jobs that come over the socket, whose file descriptor is the last argument.

    FOREGROUND: a command waits for its one job. The job runs at full priority and on all cores. Only changes of domains
    and faults of the program are logged, because the command prints how the job ends.
    """
    settings = Settings()
    if FOREGROUND in sys.argv:
        logs.configure("critical", settings.log_format)
        logging.getLogger("isosim.domains.store").setLevel(logging.INFO)
    else:
        logs.configure(settings.log_level, settings.log_format)
        step_back()
        settings = settings.model_copy(update={"threads": settings.threads or 1})
    link = Link(int(sys.argv[-1]))
    jobs = JobStore(opened(settings.model_store))
    while True:
        run(settings, jobs, link.next_job(jobs), link)


if __name__ == "__main__":
    main()
