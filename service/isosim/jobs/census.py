"""Counts the recorded jobs. Reports the end of each job once, also if another process ran the job."""

from collections import Counter
from typing import NamedTuple

from isosim.jobs.job import Job, Status
from isosim.jobs.store import JobStore


class Census(NamedTuple):
    counts: Counter[Status]
    ended: list[Job]  # jobs that ended or were interrupted since the previous `take`
    queued: list[Job]


class JobCensus:
    """Counts jobs. The first `take` only counts: it reports no ended or interrupted jobs."""

    def __init__(self, jobs: JobStore) -> None:
        self.jobs = jobs
        self._ended: set[str] | None = None  # None before the first `take`
        self._interrupted: dict[str, int] = {}  # job id -> the attempt whose interruption was reported

    def take(self) -> Census:
        unended, ended = self.jobs.survey()
        counts = Counter([job.status for job in unended] + [one.status for one in ended.values()])
        attempts = {job.id: job.attempt for job in unended if job.status is Status.INTERRUPTED}
        news = [job for job in unended if job.id in attempts and self._interrupted.get(job.id) != job.attempt]
        begun, known = self._ended is not None, self._ended or set()
        if begun:
            news += self.jobs.read_each([name for name in ended if name not in known])
        there = {job.id for job in unended}
        self._interrupted = {name: n for name, n in self._interrupted.items() if name in there} | attempts
        self._ended = set(ended)
        return Census(counts, news if begun else [], [job for job in unended if job.status is Status.QUEUED])
