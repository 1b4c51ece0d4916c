"""Jobs in the store, a folder or a bucket: each ends once, also if workers die, hang or are replaced."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isosim.errors import Conflict, CorruptArtifact, JobCancelled, NotFound, Unavailable
from isosim.jobs.job import ATTEMPTS, Job, LabelledPair, Status
from isosim.jobs.posted import Posted, Spool
from isosim.jobs.store import ABANDONED, SILENCE, Attempt, JobStore, OpenJob, id_of
from isosim.store.blobs import Blobs
from tests.jobs.conftest import REQUEST, Clock, post
from tests.store.conftest import EVERY_PLACE, Open
from tests.store.machines import FAULTS, Crashing, Watched, faulty, run_on

WORK: dict[str, Callable[[Attempt], object]] = {
    "beats": lambda attempt: attempt.beat("fitting", 0.5),
    "fails": lambda attempt: attempt.end(Status.FAILED, error="unfit"),
    "gives back": lambda attempt: attempt.give_back("it was told so"),
    "stops": lambda attempt: attempt.give_back("it was told so", counts=False),
}
OWNERS, KEYS = st.sampled_from(["ann", "bob"]), st.sampled_from([None, "1", "2"])
NAMES = (f"worker {number}" for number in count())


def begun(jobs: JobStore) -> Attempt:
    attempt = jobs.claim(next(NAMES))
    assert attempt is not None
    return attempt


def names(blobs: Blobs) -> list[str]:
    return [entry.key for entry in blobs.list("")]


def texts(jobs: JobStore, job: Job) -> list[str]:
    with jobs.posted(job) as folder:
        return list(Posted.from_folder(folder).texts)


class Worker:
    """A worker as far as the store sees it: its attempt, and whether that has published its version."""

    def __init__(self, blobs: Any, versions: dict[str, int]) -> None:
        self.clock, self.name, self.versions = Clock(), next(NAMES), versions
        self.jobs = JobStore(blobs, self.clock)
        self.attempt: Attempt | None = None

    def claim(self) -> Attempt | None:
        self.attempt = self.jobs.claim(self.name, lambda _: None, self.published)
        return self.attempt

    def published(self, job: Job) -> dict[str, Any] | None:
        return {"version": self.versions[job.id], "promoted": False} if job.id in self.versions else None

    def does(self, what: str) -> bool:
        """A step of the attempt; one that was replaced or cancelled is over. Returns whether it was written into the
        job's record."""
        assert self.attempt is not None
        job = self.attempt.job
        try:
            if what in WORK:
                WORK[what](self.attempt)
            elif job.status is Status.RUNNING:
                self.attempt.publish()
            elif job.id not in self.versions:
                self.versions[job.id] = job.attempt  # a domain keeps one version of a job, also of an attempt replaced
                return False
            else:
                self.attempt.end(Status.SUCCEEDED, version=self.versions[job.id])
        except JobCancelled:
            with pytest.raises(JobCancelled):
                self.attempt.beat("fitting", 0.5)
            self.attempt = None
            return False
        if self.attempt.job.worker is None:
            self.attempt = None
        return True


class Machine(RuleBasedStateMachine):
    """Two workers and an API process, which may die or miss an answer, beside the jobs that were acknowledged."""

    make: Open

    def __init__(self) -> None:
        super().__init__()
        self.crashing = Crashing(type(self).make())
        self.versions: dict[str, int] = {}
        self.workers = [Worker(self.crashing, self.versions) for _ in range(2)]
        self.api = JobStore(self.crashing)
        self.other = JobStore(self.crashing.blobs)
        self.known: dict[str, Job] = {}  # acknowledged jobs, as they were last seen

    def is_hit(self, *, killed: bool, worker: int | None = None, **given: Any) -> None:
        if killed and worker is None:
            self.api = JobStore(self.crashing)
        elif killed and worker is not None:
            self.dies(worker)

    @initialize()
    def posts_one(self) -> None:
        self.posts(fault=None, owner="ann", key="1", seed=0)

    @rule(fault=FAULTS, owner=OWNERS, key=KEYS, seed=st.integers(0, 1))
    @faulty
    def posts(self, owner: str, key: str | None, seed: int) -> None:
        holder = None if key is None else self.holder(id_of(owner, key, 0))
        if key is not None:
            assert self.api.has(id_of(owner, key, 0)) is (holder is not None)
        try:
            job = post(self.api, str(seed), owner, key, seed=seed)
        except Conflict:
            assert holder is not None
            assert holder.request.seed != seed
            return
        assert (job.owner, job.request.seed) == (owner, seed)
        assert job.id not in self.known if holder is None else job.id == holder.id
        self.known.setdefault(job.id, job)

    def holder(self, name: str) -> Job | None:
        """The job to which an idempotency key leads."""
        try:
            return self.other.read(name)
        except NotFound:
            return None

    @rule(
        fault=FAULTS,
        worker=st.integers(0, 1),
        what=st.sampled_from([*["goes on"] * 5, *WORK, "waits", "dies", *["is taken for dead"] * 2]),
        seconds=st.sampled_from([1.0, SILENCE, SILENCE + 1]),
    )
    @faulty
    def works(self, worker: int, what: str, seconds: float) -> None:
        mine, other = self.workers[worker], self.workers[1 - worker]
        if what == "waits":
            mine.clock.now += seconds
        elif what == "dies":
            self.dies(worker)
        elif mine.attempt is None:
            self.claims(mine)
        elif what != "is taken for dead":
            job = mine.attempt.job
            if mine.does(what) and mine.attempt is not None:
                assert self.other.read(job.id).attempt == job.attempt  # a late writer is refused
        elif other.attempt is None:  # the other worker takes the job of this one, which comes back
            self.claims(other)
            other.clock.now += SILENCE + 1
            self.claims(other)

    def claims(self, mine: Worker) -> None:
        if (attempt := mine.claim()) is None:
            return
        job = attempt.job
        assert self.other.read(job.id) == job
        assert texts(mine.jobs, job) == [str(job.request.seed)]
        if (before := self.known.get(job.id)) is not None:
            goes_on = before.worker == mine.name  # the answer to its claim was lost
            assert job.attempt == before.attempt + (not goes_on)
            assert goes_on or before.worker is None or mine.clock.now > SILENCE

    def dies(self, worker: int) -> None:
        self.workers[worker] = Worker(self.crashing, self.versions)

    @rule(fault=FAULTS, keep=st.integers(0, 3))
    @faulty
    def sweeps(self, keep: int) -> None:
        ended = [job.id for job in self.other.newest() if job.status.ended]
        self.api.sweep(keep)
        if self.crashing.hit:  # it passes over what it cannot read
            return
        left = self.other.newest()
        assert {*ended[:keep]} <= {job.id for job in left}
        needed = {entry.id for entry in self.other.index()}
        for job in left:
            assert not job.status.ended or job.id in ended[:keep] or job.id in needed

    @rule(fault=FAULTS, what=st.sampled_from(["cancels"] * 2 + ["removes", "loses its entry"]), at=st.integers(0, 3))
    @faulty
    def asks(self, what: str, at: int) -> None:
        found = sorted(name for name, job in self.known.items() if not job.status.ended) or sorted(self.known)
        if not found:
            return
        job = self.other.read(found[at % len(found)])
        if what == "cancels":
            if job.status in (Status.QUEUED, Status.RUNNING):
                assert self.api.cancel(job.id).status is Status.CANCELLED
            else:
                publishing = job.status is Status.PUBLISHING
                with pytest.raises(Conflict, match="can no longer be" if publishing else f"is {job.status} already"):
                    self.api.cancel(job.id)
        elif what == "removes":
            if job.status.ended:
                self.api.remove(job)
        elif not job.status.ended:  # of an ended one, the entry leads to what is left to remove
            self.other.blobs.delete([OpenJob.of(job).key])
            self.other.sweep()

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        index = {entry.key for entry in self.other.index()}
        listed = self.other.newest()
        assert listed == sorted(listed, key=lambda job: job.created, reverse=True)
        assert self.other.unended() == [job for job in listed if not job.status.ended]
        jobs = {job.id: job for job in listed}
        for name in self.known.keys() - jobs.keys():
            assert self.known.pop(name).status.ended  # and was swept
            self.versions.pop(name, None)
            with pytest.raises(NotFound):
                self.other.read(name)
        for name, before in self.known.items():
            job = self.known[name] = self.other.read(name)
            assert jobs[name] == replace(job, report=None)
            assert job.attempt >= before.attempt
            assert job.attempt - job.spared <= ATTEMPTS
            if before.status.ended:
                assert job == before
            assert before.status is not Status.PUBLISHING or job.status is not Status.CANCELLED
            if not job.status.ended:
                assert OpenJob.of(job).key in index
                assert texts(self.other, job) == [str(job.request.seed)]
            elif OpenJob.of(job).key not in index:
                with pytest.raises(Unavailable, match="the posted text is gone"):
                    texts(self.other, job)
            assert job.status is not Status.CANCELLED or name not in self.versions
            assert job.status is not Status.SUCCEEDED or job.version == self.versions[name]

    def teardown(self) -> None:
        """A new worker ends all jobs, and nothing but their records is left."""
        last = Worker(self.crashing.blobs, self.versions)
        while last.claim() or last.jobs.unended():
            last.clock.now += SILENCE + 1
            while last.attempt is not None:
                last.does("goes on")
        last.clock.now += ABANDONED + 1
        last.claim()
        for name in self.known:
            job = self.other.read(name)
            assert job.status.ended
            assert (name in self.versions) is (job.status is Status.SUCCEEDED) or job.status is Status.FAILED
        assert [key for key in names(self.crashing.blobs) if not key.startswith("jobs/")] == []


@EVERY_PLACE
def test_each_job_runs_to_one_end_whoever_dies(place: Open) -> None:
    run_on(place, Machine, examples=60)


def opened(blobs: Any, clock: Clock | None = None) -> JobStore:
    return JobStore(blobs, clock or Clock())


def watched(blobs: Blobs, operation: str, call: Callable[..., object], clock: Clock | None = None) -> JobStore:
    """A store that calls a function before each such operation."""
    return opened(Watched(blobs, lambda name, *given: call(*given) if name == operation else None), clock)


def test_owners_take_turns_and_the_oldest_job_of_an_owner_comes_first(blobs: Blobs) -> None:
    workers = opened(blobs), opened(blobs)
    posted = [post(opened(blobs), owner=owner).id for owner in ["ann"] * 3 + ["bob"] * 2]
    attempts: list[Attempt] = []
    for number in range(5):
        attempts.append(begun(workers[number % 2]))  # which sees what the other one runs
        if number:
            attempts[-2].end(Status.FAILED, error="unfit")
        else:
            post(opened(blobs), owner="bob")  # he posts again as soon as a job has begun
    assert [posted.index(attempt.job.id) for attempt in attempts] == [0, 3, 1, 4, 2]


def test_a_worker_that_does_not_beat_is_taken_for_dead_and_the_third_time_its_job_fails(blobs: Blobs) -> None:
    """However the clocks jump; and the champion is that of the first attempt."""
    clock, job, attempts = Clock(), post(opened(blobs)), list[Attempt]()
    jobs = opened(blobs, clock)
    stopped = watched(blobs, "list", lambda *_: setattr(clock, "now", clock.now + 2 * SILENCE), clock)
    for number in (1, 2, 3):
        attempt = jobs.claim(next(NAMES), champion=lambda _: number)  # noqa: B023
        assert attempt is not None
        assert (attempt.job.attempt, attempt.job.request.champion) == (number, 1)
        assert [stopped.claim("other"), stopped.claim("other")] == [None, None]  # it was stopped while it looked
        for _ in range(3):
            assert jobs.claim("other") is None
            clock.now += 1e6
            attempt.beat(f"stage {number}", 0.5)
        assert jobs.claim("other") is None
        clock.now += SILENCE + 1
        attempts.append(attempt)
    assert jobs.rested_on() == {"a": {1}}
    assert jobs.claim("worker") is None
    end = jobs.read(job.id)
    assert (end.status, end.attempt, jobs.rested_on()) == (Status.FAILED, 3, {})
    assert end.notices == [
        f"attempt {number}: its worker fell silent while stage {number}, perhaps because memory ran out"
        for number in (1, 2, 3)
    ]
    assert end.error == f"{end.notices[-1]}; no further attempt is made"
    for attempt in attempts:
        with pytest.raises(JobCancelled, match=r"attempt . of job .* has been replaced"):
            attempt.end(Status.FAILED, error="unfit")


def test_of_equal_requests_the_second_changes_nothing_until_the_key_is_free(blobs: Blobs) -> None:
    first: list[Job] = []
    jobs = watched(blobs, "upload", lambda *_: first or first.append(post(opened(blobs), key="1")))
    assert [post(jobs, key="1")] == first
    assert texts(jobs, first[0]) == ["0"]
    assert len(names(blobs)) == 3
    for text, seed in (("1", 0), ("0", 1)):
        with pytest.raises(Conflict, match="Idempotency-Key was used for another calibration"):
            post(jobs, text, key="1", seed=seed)
    attempt = begun(opened(blobs))
    assert post(jobs, key="1", epoch=1) != first[0]  # the domain was deleted meanwhile
    jobs.cancel(first[0].id)
    assert post(jobs, key="1") == jobs.read(first[0].id)
    jobs.remove(first[0])
    with pytest.raises(JobCancelled, match="was removed"):
        attempt.beat("fitting", 0.5)
    job = post(watched(blobs, "upload", lambda *_: opened(blobs).sweep(keep=0)), key="1")
    assert (job.status, job.id) == (Status.QUEUED, first[0].id)
    assert post(jobs, key="1") == job
    with pytest.raises(JobCancelled):
        attempt.publish()


def test_a_post_that_took_too_long_is_refused(blobs: Blobs) -> None:
    clock = Clock()
    with pytest.raises(Unavailable, match="took too long"):
        post(watched(blobs, "upload", lambda *_: setattr(clock, "now", ABANDONED), clock))
    assert names(blobs) == []


def test_a_listing_reads_an_ended_job_once(blobs: Blobs) -> None:
    reads: list[str] = []
    jobs = watched(blobs, "read", reads.append)
    posted = [post(jobs) for _ in range(3)]
    for job in posted[1:]:
        jobs.cancel(job.id)
    jobs.newest()
    reads.clear()
    assert [job.status.ended for job in jobs.newest()] == [True, True, False]
    assert reads == [jobs.records.key(posted[0].id)]


@pytest.mark.parametrize("left", ["of a killed upload", "of a loser", "of a damaged record"])
def test_what_is_left_of_no_job_stops_no_other_and_is_removed_later(blobs: Blobs, left: str) -> None:
    """Of two requests with one idempotency key, the loser has the id of the other job."""
    clock, job, other = Clock(), post(opened(blobs), key="1"), post(opened(blobs))
    jobs, record = opened(blobs, clock), opened(blobs).records.key(other.id)
    if "loser" in left:
        blobs.delete([record])
        jobs._drop(OpenJob.of(other))
        other = replace(job, input="f" * 32)
        for key in (OpenJob.of(other).key, OpenJob.of(other).files[0]):
            blobs.write(key, b"")
    elif "record" in left:
        blobs.write(record, b"{")
        for call in (jobs.read, jobs.cancel):
            with pytest.raises(CorruptArtifact):
                call(other.id)
    else:
        blobs.delete([record])
    litter = {*names(blobs)} - {OpenJob.of(job).key, OpenJob.of(job).files[0], jobs.records.key(job.id)}
    blobs.delete([OpenJob.of(job).key])  # that of another upload does not stand for it
    for _ in range(2):
        jobs.sweep(keep=0)
        assert [one.id for one in jobs.unended()] == [one.id for one in jobs.newest()] == [job.id]
        assert litter | {OpenJob.of(job).key} <= {*names(blobs)}
        clock.now += ABANDONED / 2 + 1
    jobs.sweep()
    assert len(litter) == 2 + ("record" in left)
    assert not litter & {*names(blobs)}
    assert texts(jobs, begun(jobs).job) == ["0"]


def test_a_record_that_cannot_be_read_stops_no_other_job_and_is_kept(blobs: Blobs) -> None:
    first, other, clock = post(opened(blobs)), post(opened(blobs)), Clock()

    def fails(key: str) -> None:
        if key == f"jobs/{first.id}.json":
            raise OSError(5, "Input/output error")

    jobs = watched(blobs, "read", fails, clock)
    assert begun(jobs).job.id == other.id
    for _ in range(3):
        jobs.sweep(keep=0)
        clock.now += ABANDONED + 1
    assert [job.id for job in jobs.newest()] == [other.id]
    for whole in (jobs.unended, jobs.rested_on):
        with pytest.raises(OSError, match="Input"):  # a caller that deletes versions must not take the job for missing
            whole()
    assert begun(opened(blobs)).job.id == first.id


def test_a_job_of_whose_version_nothing_can_be_read_waits_and_stops_no_other(blobs: Blobs) -> None:
    jobs = opened(blobs)
    first = post(jobs)
    for _ in range(ATTEMPTS):
        attempt = begun(jobs)
        attempt.publish()
        attempt.give_back("it died")
    other = post(jobs, owner="bob")

    def unreadable(_: Job) -> None:
        raise OSError("the domain cannot be read")

    taken = jobs.claim("worker", published=unreadable)
    assert taken is not None
    assert (taken.job.id, jobs.read(first.id).status) == (other.id, Status.PUBLISHING)
    jobs.claim("other", published=lambda _: {"version": 1})
    assert jobs.read(first.id).status is Status.SUCCEEDED


def test_text_labels_and_vectors_arrive_as_they_were_posted(blobs: Blobs) -> None:
    jobs, pair = opened(blobs), LabelledPair("a", "b", 1.0, 2.0)
    with Spool() as spool:
        spool.extend(["first", pair, "zweiter\n"])
        np.save(spool.vectors, np.ones((2, 8), np.float32))
        spool.vectors.flush()
        job = jobs.create(REQUEST, spool, [])
        assert job.size == spool.size
    with jobs.posted(job) as folder, jobs.posted(post(jobs)) as without:
        posted = Posted.from_folder(folder)
        assert (list(posted.texts), posted.labels) == (["first", "zweiter\n"], [pair])
        assert posted.vectors is not None and len(posted.vectors) == 2
        assert Posted.from_folder(without).vectors is None
