"""Jobs counted: each end once, whoever ran the job, however often one looks and however many look."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from isosim.jobs.census import JobCensus
from isosim.jobs.job import Job, JobRequest, Status
from isosim.jobs.store import SILENCE, JobStore


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


def post(jobs: JobStore) -> Job:
    with jobs.spool() as spool:
        spool.extend(["a"])
        return jobs.create(JobRequest("d", "digest", "tiny"), spool, [], None)


def end(jobs: JobStore, job: Job, status: Status = Status.SUCCEEDED) -> None:
    if status is Status.SUCCEEDED and jobs.read(job.id).status is Status.QUEUED:
        jobs.begin(job.id)
    assert jobs.decide(job.id)
    jobs.end(jobs.read(job.id), status)


def news(census: JobCensus) -> list[tuple[str, Status]]:
    return sorted((job.id, job.status) for job in census.take().ended)


def test_an_end_is_told_once(jobs: JobStore) -> None:
    first, second = post(jobs), post(jobs)
    census = JobCensus(jobs)
    assert census.take()[:2] == (Counter({Status.QUEUED: 2}), [])
    end(jobs, first)
    assert news(census) == [(first.id, Status.SUCCEEDED)]
    end(jobs, second, Status.CANCELLED)
    assert news(census) == [(second.id, Status.CANCELLED)]
    assert census.take()[:2] == (Counter({Status.SUCCEEDED: 1, Status.CANCELLED: 1}), [])


def test_what_ended_before_the_first_census_is_no_news(jobs: JobStore) -> None:
    """A restart counts nothing again."""
    end(jobs, post(jobs))
    census = JobCensus(jobs)
    assert census.take()[:2] == (Counter({Status.SUCCEEDED: 1}), [])
    assert news(census) == []


def test_a_job_that_came_and_ended_between_two_looks_is_told(jobs: JobStore) -> None:
    census = JobCensus(jobs)
    census.take()
    job = post(jobs)
    end(jobs, job, Status.FAILED)
    assert news(census) == [(job.id, Status.FAILED)]


def test_every_interruption_of_a_job_is_an_end_and_so_is_its_last(jobs: JobStore) -> None:
    job = post(jobs)
    census = JobCensus(jobs)
    census.take()
    for _ in range(2):
        jobs.begin(job.id)
        assert news(census) == []
        jobs.interrupt(job.id)
        assert news(census) == [(job.id, Status.INTERRUPTED)]
        assert news(census) == []
        jobs.requeue(job.id)
    jobs.begin(job.id)
    end(jobs, job)
    assert news(census) == [(job.id, Status.SUCCEEDED)]


def test_a_worker_that_fell_silent_is_an_interruption_once(tmp_path: Path) -> None:
    time = 0.0
    jobs = JobStore(tmp_path, clock=lambda: time)
    job = post(jobs)
    census = JobCensus(jobs)
    jobs.begin(job.id)
    assert news(census) == []
    time += SILENCE + 1
    assert news(census) == [(job.id, Status.INTERRUPTED)]
    jobs.interrupt(job.id)  # by whoever finds out
    assert news(census) == []


def test_each_record_of_an_ended_job_is_read_once_and_forgotten_ones_are_not_counted(jobs: JobStore) -> None:
    class Reading(JobStore):
        read_names: list[str]

        def read(self, job_id: str) -> Job:
            self.read_names.append(job_id)
            return super().read(job_id)

    reading: Any = Reading(jobs.root.parent)
    reading.read_names = []
    ended, waiting = post(jobs), post(jobs)
    end(jobs, ended, Status.FAILED)
    census = JobCensus(reading)
    for _ in range(3):
        census.take()
    assert Counter(reading.read_names) == {ended.id: 1, waiting.id: 3}
    (jobs.root / waiting.id / "job.json").write_text("{")  # an odd record is passed over
    jobs.discard(ended.id)
    assert census.take()[:2] == (Counter(), [])
