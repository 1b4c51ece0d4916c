"""A store of each kind, as for the tests of records; a clock, and jobs to post."""

from dataclasses import replace
from typing import Any

from isosim.jobs.job import Job, JobRequest
from isosim.jobs.store import JobStore
from tests.store.conftest import blobs, objects, place  # noqa: F401 - fixtures
from tests.stores import post_job

REQUEST = JobRequest("a", "e" * 64, "minilm", promote="never")


class Clock:
    """Seconds as one process counts them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def post(jobs: JobStore, text: str = "0", owner: str = "ann", key: str | None = None, **request: Any) -> Job:
    return post_job(jobs, replace(REQUEST, **request), [text], idempotency_key=key, owner=owner)
