"""What is told of a calibration beside its record: lines in the log, a trace."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from service.adapters.job_store import JobStore
from service.core.errors import JobCancelled
from service.core.jobs import Job, Status
from service.logs.lines import about
from service.settings import Settings
from service.tracing import tracing

if TYPE_CHECKING:
    from service.otlp import JobSpan  # only where tracing is on

log = logging.getLogger("isosim.jobs")

LAST_SPANS = 3.0  # s to send a calibration's spans


class Watched:
    """A job that runs; `job` is its record once it has ended."""

    def __init__(self, span: "JobSpan | None") -> None:
        self.span = span
        self.job: Job | None = None

    def stage(self, name: str) -> None:
        log.debug("stage %s", name)
        if self.span is not None:
            self.span.stage(name)


@contextmanager
def observed(settings: Settings, jobs: JobStore, job_id: str) -> Iterator[Watched]:
    """Says that a job begins and how it ended; every line meanwhile names it."""
    posted = jobs.read(job_id)
    request = posted.request
    what: dict[str, str | int | float | bool] = {
        "domain": request.domain,
        "method": request.method,
        "sentences": request.sentences,
    }
    traces = tracing(settings, "isosim-worker")
    span = None
    if traces is not None:
        span = traces.calibration(posted.traceparent, {f"isosim.{name}": value for name, value in what.items()})
    about.set({"job": job_id} | (span.ids if span is not None else {}))
    watched, began = Watched(span), time.perf_counter()
    log.info("calibration begins", extra={"facts": what | {"labels": request.labels, "attempt": posted.attempt + 1}})
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


def tell(watched: Watched, status: Status, seconds: float) -> None:
    facts: dict[str, str | int | float | bool] = {"status": status.value, "seconds": round(seconds, 2)}
    if watched.job is not None and watched.job.version is not None:
        facts |= {"version": watched.job.version, "promoted": bool(watched.job.promoted)}
    log.log(logging.ERROR if status is Status.FAILED else logging.INFO, "calibration ended", extra={"facts": facts})
    if watched.span is not None:
        failure = None if status in (Status.SUCCEEDED, Status.CANCELLED) else status.value
        watched.span.end({f"isosim.{name}": value for name, value in facts.items()}, failure)
