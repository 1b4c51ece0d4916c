"""Processes killed (SIGKILL) at each step of a change of a job: nothing half is ever visible, and the job goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.jobs.job import Status
from isosim.jobs.store import ABANDONED, SILENCE, Attempt, JobStore
from isosim.store.blobs import Blobs, Folder
from tests.jobs.test_store import Clock, post, texts
from tests.store.machines import killed_at

STEPS = 60  # more than any of the changes takes


def claimed(blobs: Blobs, worker: str = "first") -> Attempt:
    attempt = JobStore(blobs).claim(worker)
    assert attempt is not None
    return attempt


def ends(blobs: Blobs, status: Status) -> None:
    attempt = claimed(blobs)  # it goes on with the job that it holds
    if attempt.job.status is not Status.PUBLISHING and status is Status.SUCCEEDED:
        attempt.publish()
    attempt.end(status, **{"version": 1} if status is Status.SUCCEEDED else {"error": "unfit"})


CHANGES: dict[str, Callable[[Blobs], object]] = {
    "post": lambda blobs: post(JobStore(blobs), key="1"),
    "claim": claimed,
    "succeed": lambda blobs: ends(blobs, Status.SUCCEEDED),
    "fail": lambda blobs: ends(blobs, Status.FAILED),
    "give back": lambda blobs: claimed(blobs).give_back("its worker was stopped"),
    "cancel": lambda blobs: JobStore(blobs).cancel(JobStore(blobs).newest()[0].id),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_killed_process_leaves_a_job_before_or_after(what: str, tmp_path: Path) -> None:
    for step in range(1, STEPS):
        blobs = Folder(tmp_path / str(step))
        clock = Clock()
        watcher = JobStore(blobs, clock)
        if what != "post":
            post(watcher, key="1")
        if what not in ("post", "claim"):
            claimed(blobs)
        killed = killed_at(step, blobs.root, CHANGES[what])

        jobs = watcher.newest()
        assert len(jobs) in ((0, 1) if what == "post" else (1,))
        for job in jobs:
            if not job.status.ended:
                assert texts(watcher, job) == ["first"]
            assert (job.version is not None) == (job.status is Status.SUCCEEDED)
        # A repeated post finds the same job. After the first worker has been silent, another one takes the job.
        again = post(watcher, key="1")
        assert [again.id] == [job.id for job in watcher.newest()]
        watcher.claim("second")
        clock.now += SILENCE + 1
        attempt = watcher.claim("second")
        assert (attempt is None) == again.status.ended
        if attempt is not None:
            assert texts(watcher, attempt.job) == ["first"]
            attempt.publish()
            attempt.end(Status.SUCCEEDED, version=1)
        assert watcher.read(again.id).status.ended
        # Nothing is left of it but its record.
        watcher.sweep()
        clock.now += ABANDONED + 1
        watcher.sweep()
        for item in blobs.unfinished(0):
            item.remove()
        assert {path.relative_to(blobs.root).parts[0] for path in blobs.root.rglob("*") if path.is_file()} == {"jobs"}
        assert list(blobs.root.rglob(".*")) == []
        if not killed:
            return
    raise AssertionError("the change has more steps")
