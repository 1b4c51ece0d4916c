"""Counts the jobs on record, and tells of each end once, wherever the job ran."""

from collections import Counter
from typing import NamedTuple

from service.adapters.jobs.store import JobStore
from service.core.errors import CorruptArtifact, NotFound
from service.core.jobs.job import Job, Status


class Census(NamedTuple):
    counts: Counter[Status]
    ended: list[Job]  # since the census before; an interruption is the end of an attempt
    queued: list[Job]


class JobCensus:
    """Counts jobs. Those that ended before the first census are not reported; each ended job is read only once, since
    its record never changes."""

    def __init__(self, jobs: JobStore) -> None:
        self.jobs = jobs
        self._ended: dict[str, Status] = {}
        self._interrupted: dict[str, int] = {}  # job: its attempt
        self._begun = False

    def take(self) -> Census:
        names = self.jobs.names()
        present = set(names)
        self._ended = {name: status for name, status in self._ended.items() if name in present}
        self._interrupted = {name: attempt for name, attempt in self._interrupted.items() if name in present}
        counts: Counter[Status] = Counter(self._ended.values())
        ended, queued = [], []
        for name in names:
            if name in self._ended:
                continue
            try:
                job = self.jobs.read(name)
            except (NotFound, FileNotFoundError, CorruptArtifact):
                continue  # forgotten meanwhile; or an odd record, of which listing the jobs tells
            counts[job.status] += 1
            if job.status is Status.QUEUED:
                queued.append(job)
            if self._is_news(job):
                ended.append(job)
        begun, self._begun = self._begun, True
        return Census(counts, ended if begun else [], queued)

    def _is_news(self, job: Job) -> bool:
        if job.status.ended:
            self._ended[job.id] = job.status
            return True
        if job.status is Status.INTERRUPTED and self._interrupted.get(job.id) != job.attempt:
            self._interrupted[job.id] = job.attempt
            return True
        return False
