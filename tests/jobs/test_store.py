"""Jobs in the store, a folder or a bucket: each ends once, also if workers die, hang or are replaced."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isosim.errors import Conflict, CorruptArtifact, JobCancelled, NotFound, Unavailable
from isosim.jobs.job import ATTEMPTS, Job, JobRequest, LabelledPair, Status
from isosim.jobs.posted import Spool
from isosim.jobs.store import ABANDONED, SILENCE, Attempt, JobStore, OpenJob, later
from isosim.store.blobs import Blobs
from tests.store.conftest import Open
from tests.store.machines import FAULTS, Crashing, Killed, Watched, faulty, run_on

REQUEST = JobRequest("a", "e" * 64, "minilm", promote="never")
WORKERS = st.integers(0, 1)
OWNERS = st.sampled_from(["ann", "bob"])
KEYS = st.sampled_from([None, "1", "2"])
TEXTS = st.sampled_from(["first", "second"])
WORK = st.sampled_from(
    [*["goes on"] * 5, "beats", "fails", "gives back", "stops", "waits", "dies", *["is taken for dead"] * 2]
)


class Clock:
    """Seconds as one process counts them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def post(
    jobs: JobStore, text: str = "first", owner: str = "ann", key: str | None = None, request: JobRequest = REQUEST
) -> Job:
    with Spool() as spool:
        spool.extend([text])
        return jobs.create(request, spool, [], key, owner=owner)


def begun(jobs: JobStore) -> Attempt:
    attempt = jobs.claim(next(NAMES))
    assert attempt is not None
    return attempt


def names(blobs: Blobs, prefix: str = "") -> list[str]:
    return [entry.key for entry in blobs.list(prefix)]


def texts(jobs: JobStore, job: Job) -> list[str]:
    with jobs.posted(job) as posted:
        return list(posted.texts())


NAMES = (f"worker {number}" for number in count())


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
            if what == "beats":
                self.attempt.beat("fitting", 0.5)
            elif what == "gives back":
                self.attempt.give_back("it was told so")
            elif what == "stops":
                self.attempt.give_back("it was told so", counts=False)
            elif what == "fails":
                self.attempt.end(Status.FAILED, error="unfit")
            elif job.status is Status.RUNNING:
                self.attempt.publish()
            elif job.id not in self.versions:
                self.versions[job.id] = job.attempt  # a domain keeps one version of a job, also of an attempt replaced
                return False
            else:
                self.attempt.end(Status.SUCCEEDED, version=self.versions[job.id])
        except (JobCancelled, NotFound):  # NotFound: its record was damaged, and was removed
            with pytest.raises((JobCancelled, NotFound)):
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
        self.api = JobStore(self.crashing)  # type: ignore[arg-type]
        self.other = JobStore(self.crashing.blobs)
        self.known: dict[str, Job] = {}  # acknowledged jobs, as they were last seen
        self.texts: dict[str, str] = {}
        self.keys: dict[tuple[str, str | None], str] = {}  # (owner, idempotency key): its last job
        self.freed: set[str] = set()  # jobs that have lost their key
        self.unsure: set[tuple[str, str | None]] = set()  # keys of which it is unknown whether a job has them

    def is_hit(self, *, killed: bool, worker: int | None = None, **given: Any) -> None:
        if "text" in given:
            self.unsure.add((given["owner"], given["key"]))
        if given.get("what") == "frees":
            self.unsure |= self.keys.keys()
            self.keys.clear()
        if killed and worker is None:
            self.api = JobStore(self.crashing)  # type: ignore[arg-type]
        elif killed and worker is not None:
            self.dies(worker)

    @initialize()
    def posts_one(self) -> None:
        self.posts(fault=None, owner="ann", key="1", text="first")

    @rule(fault=FAULTS, owner=OWNERS, key=KEYS, text=TEXTS)
    @faulty
    def posts(self, owner: str, key: str | None, text: str) -> None:
        before = self.keys.get((owner, key))
        holder = None if key is None or before is None or before in self.freed else before
        if key is not None and (owner, key) not in self.unsure:
            assert self.api.has_key(owner, key) is (holder is not None)
        try:
            job = post(self.api, text, owner, key)
        except Conflict:
            assert (owner, key) in self.unsure or self.texts[str(holder)] != text
            return
        if holder is not None:
            assert (job.id, self.texts[job.id]) == (holder, text)
        elif (owner, key) not in self.unsure:
            assert job.id not in self.known
        self.keys[owner, key] = job.id
        self.known.setdefault(job.id, job)
        self.texts[job.id] = text

    @rule(fault=FAULTS, worker=WORKERS, what=WORK, seconds=st.sampled_from([1.0, SILENCE, SILENCE + 1]))
    @faulty
    def works(self, worker: int, what: str, seconds: float) -> None:
        mine = self.workers[worker]
        if what == "waits":
            mine.clock.now += seconds
        elif what == "dies":
            self.dies(worker)
        elif mine.attempt is None:
            self.claims(mine)
        elif what == "is taken for dead":
            self.is_taken_for_dead(worker)
        else:
            job = mine.attempt.job
            if mine.does(what) and mine.attempt is not None:
                assert self.other.read(job.id).attempt == job.attempt  # a late writer is refused

    def claims(self, mine: Worker) -> None:
        attempt = mine.claim()
        if attempt is None:
            return
        job = attempt.job
        assert self.other.read(job.id) == job
        before = self.known.get(job.id)
        if before is not None:
            goes_on = before.worker == mine.name  # the answer to its claim was lost
            assert job.attempt == before.attempt + (not goes_on)
            assert goes_on or before.worker is None or mine.clock.now > SILENCE
            assert texts(mine.jobs, job) == [self.texts[job.id]]

    def is_taken_for_dead(self, worker: int) -> None:
        """The other worker takes the job of this one, which comes back."""
        other = self.workers[1 - worker]
        if other.attempt is None:
            self.claims(other)
            other.clock.now += SILENCE + 1
            self.claims(other)

    def dies(self, worker: int) -> None:
        self.workers[worker] = Worker(self.crashing, self.versions)

    def cancels(self, job: str) -> None:
        before = self.other.read(job)
        try:
            assert self.api.cancel(job).status is Status.CANCELLED
        except Conflict as error:
            publishing = before.status is Status.PUBLISHING
            assert ("can no longer be cancelled" if publishing else f"is {before.status} already") in str(error)
        else:
            assert before.status in (Status.QUEUED, Status.RUNNING)

    def sweeps(self, keep: int) -> None:
        ended = [job.id for job in self.other.newest() if job.status.ended]
        self.api.sweep(keep)
        if self.crashing.hit:  # it passes over what it cannot read
            return
        left = self.other.newest()
        assert {*ended[:keep]} <= {job.id for job in left}
        # The first job of a key leads to the later ones, also to one that is just being posted.
        leading = {job.first for job in left if job.first != job.id}
        posting = {entry.id for entry in self.other.index()}
        for job in left:
            if job.status.ended and job.id not in ended[:keep]:
                assert job.id in leading | posting or later(job.id, job.freed) in posting

    def forget(self, job: str) -> None:
        del self.known[job]
        self.versions.pop(job, None)
        self.freed.discard(job)
        self.keys = {key: last for key, last in self.keys.items() if last != job}

    @rule(
        fault=FAULTS,
        what=st.sampled_from(["cancels", "cancels", "frees", "sweeps", "loses its entry"]),
        at=st.integers(0, 3),
    )
    @faulty
    def asks(self, what: str, at: int) -> None:
        unended = sorted(name for name, job in self.known.items() if not job.status.ended) or sorted(self.known)
        if what == "sweeps":
            self.sweeps(at)
        elif unended:
            job = unended[at % len(unended)]
            if what == "cancels":
                self.cancels(job)
            elif what == "loses its entry":
                if not self.other.read(job).status.ended:  # of an ended one, the entry leads to what is left to remove
                    self.other.blobs.delete([OpenJob.of(self.known[job]).key])
                    self.other.sweep()
            else:
                self.api.free_keys([self.known[job]])
                self.freed.add(job)

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        index = {entry.key for entry in self.other.index()}
        listed = self.other.newest()
        assert listed == sorted(listed, key=lambda job: job.created, reverse=True)
        jobs = {job.id: job for job in listed}
        for name, before in list(self.known.items()):
            if name not in jobs:
                assert before.status.ended  # and was swept
                with pytest.raises(NotFound):
                    self.other.read(name)
                self.forget(name)
                continue
            job = self.other.read(name)
            assert jobs[name] == replace(job, report=None)
            assert job.attempt >= before.attempt
            assert job.attempt - job.spared <= ATTEMPTS
            if before.status.ended:
                assert replace(job, freed=before.freed) == before
            elif before.status is Status.PUBLISHING:
                assert job.status is not Status.CANCELLED
            if not job.status.ended:
                assert OpenJob.of(job).key in index
                assert texts(self.other, job) == [self.texts[name]]
            elif OpenJob.of(job).key not in index:
                with pytest.raises(Unavailable, match="the posted text is gone"):
                    texts(self.other, job)
            if job.status is Status.CANCELLED:
                assert name not in self.versions
            if job.status is Status.SUCCEEDED:
                assert job.version == self.versions[name]
            self.known[name] = job
        assert self.other.unended() == [job for job in listed if not job.status.ended]

    def teardown(self) -> None:
        """A new worker ends all jobs, and nothing but their records is left."""
        try:
            last = Worker(self.crashing.blobs, self.versions)
            last.claim()
            for _ in range(4 * ATTEMPTS * (len(self.known) + 40)):
                if last.attempt is None:
                    last.clock.now += SILENCE + 1
                    if last.claim() is None and not last.jobs.unended():
                        break
                else:
                    last.does("goes on")
            last.clock.now += ABANDONED + 1
            last.claim()
            for name in self.known:
                job = self.other.read(name)
                assert job.status.ended
                assert (name in self.versions) is (job.status is Status.SUCCEEDED) or job.status is Status.FAILED
            assert [key for key in names(self.crashing.blobs) if not key.startswith("jobs/")] == []
        finally:
            self.crashing.blobs.delete(names(self.crashing.blobs))


def test_each_job_runs_to_one_end_whoever_dies(place: Open) -> None:
    run_on(place, Machine, examples=5 if "s3" in place().address else 60)


def opened(blobs: Any, clock: Clock | None = None) -> JobStore:
    return JobStore(blobs, clock or Clock())


def test_an_entry_that_a_killed_post_has_left_does_not_stand_for_the_jobs_own(blobs: Blobs) -> None:
    jobs = opened(blobs)
    own = OpenJob.of(post(jobs, "text", "ann"))
    blobs.write(own._replace(input="0" * 32).key, b"")
    blobs.delete([own.key])
    jobs.sweep()
    assert own.key in {entry.key for entry in jobs.index()}


def test_owners_take_turns_and_the_oldest_job_of_an_owner_comes_first(blobs: Blobs) -> None:
    workers, posting, order = (opened(blobs), opened(blobs)), opened(blobs), []
    posted = [post(posting, text, owner).id for text, owner in zip("12345", ["ann"] * 3 + ["bob"] * 2, strict=True)]
    running: list[Attempt] = []
    for number in range(5):
        running.append(begun(workers[number % 2]))  # which sees what the other one runs
        order.append(posted.index(running[-1].job.id))
        if number:
            running[-2].end(Status.FAILED, error="unfit")
        if number < 1:
            posted.append(post(posting, "more", "bob").id)  # he posts again as soon as a job has begun
    assert order == [0, 3, 1, 4, 2]


def test_a_job_that_beats_is_not_taken_however_the_clocks_jump(blobs: Blobs) -> None:
    clock = Clock()
    post(opened(blobs))
    attempt, other = begun(opened(blobs)), opened(blobs, clock)
    for _ in range(3):
        assert other.claim("other") is None
        clock.now += 1e6
        attempt.beat("fitting", 0.5)
    assert other.claim("other") is None
    clock.now += SILENCE + 1
    taken = other.claim("other")
    assert taken is not None
    assert taken.job.notices == ["attempt 1: its worker fell silent while fitting"]
    with pytest.raises(JobCancelled, match=r"attempt 1 of job .* has been replaced"):
        attempt.end(Status.FAILED, error="unfit")


def test_a_watcher_that_was_stopped_does_not_take_its_pause_for_silence(blobs: Blobs) -> None:
    clock = Clock()
    post(opened(blobs))
    attempt = begun(opened(blobs))

    def stopped(operation: str, *_: object) -> None:
        clock.now += 2 * SILENCE * (operation == "list")

    other = opened(Watched(blobs, stopped), clock)
    assert [other.claim("other"), other.claim("other")] == [None, None]  # it has read the record twice at one time
    attempt.beat("fitting", 0.5)


@pytest.mark.parametrize("how", ["silent", "dies", "stops"])
def test_a_job_fails_after_three_attempts_except_those_of_workers_that_were_told_to_stop(
    blobs: Blobs, how: str
) -> None:
    clock = Clock()
    jobs, job = opened(blobs, clock), post(opened(blobs))
    for number in (1, 2, 3):
        attempt = jobs.claim(next(NAMES), champion=lambda _: number)  # noqa: B023
        assert attempt is not None
        assert (attempt.job.attempt, attempt.job.request.champion) == (number, 1)  # the first attempt records it
        attempt.beat(f"stage {number}", 0.5)
        if how == "silent":
            jobs.claim("other")
            clock.now += SILENCE + 1
        else:
            attempt.give_back(f"it died while stage {number}", counts=how != "stops")
    assert jobs.rested_on() == {"a": {1}}
    assert (jobs.claim("worker") is None) is (how != "stops")
    end = jobs.read(job.id)
    if how == "stops":
        assert (end.status, end.attempt) == (Status.RUNNING, 4)
        return
    why = "its worker fell silent" if how == "silent" else "it died"
    assert (end.status, end.attempt) == (Status.FAILED, 3)
    assert end.error == f"attempt 3: {why} while stage 3; no further attempt is made"


def test_of_two_equal_requests_at_once_the_second_changes_nothing(blobs: Blobs) -> None:
    first: list[Job] = []

    def before(operation: str, *_: object) -> None:
        if operation == "upload" and not first:
            first.append(post(opened(blobs), key="1"))

    assert [post(opened(Watched(blobs, before)), key="1")] == first
    assert texts(opened(blobs), first[0]) == ["first"]
    assert len(names(blobs)) == 3


def test_a_key_of_other_content_is_a_conflict(blobs: Blobs) -> None:
    jobs = opened(blobs)
    job = post(jobs, key="1")
    assert post(jobs, key="1", request=replace(REQUEST, epoch=3)) == job  # the server's own field
    for text, request in (("second", REQUEST), ("first", replace(REQUEST, seed=1))):
        with pytest.raises(Conflict, match="Idempotency-Key was used for another calibration"):
            post(jobs, text, key="1", request=request)


def test_the_first_job_of_a_key_is_kept_while_the_next_is_being_posted(blobs: Blobs) -> None:
    jobs = opened(blobs)
    first = post(jobs, key="1")
    jobs.cancel(first.id)
    jobs.free_keys([first, replace(first, first="0" * 32)])

    def sweeps(operation: str, *_: object) -> None:
        if operation == "upload":
            opened(blobs).sweep(keep=0)

    job = post(opened(Watched(blobs, sweeps)), key="1")
    assert job.id != first.id
    assert post(jobs, key="1") == job


def test_a_listing_reads_an_ended_job_once(blobs: Blobs) -> None:
    reads: list[str] = []
    jobs = opened(Watched(blobs, lambda operation, *_: reads.append(operation)))
    for number in range(3):
        job = post(jobs, str(number))
        if number:
            jobs.cancel(job.id)
    jobs.newest()
    reads.clear()
    assert [job.status.ended for job in jobs.newest()] == [True, True, False]
    assert reads.count("read") == 1


def killed_upload(blobs: Blobs, job: Job) -> list[str]:
    crashing = Crashing(blobs)
    crashing.left, crashing.after = 2, True
    with pytest.raises(Killed):
        post(opened(crashing))
    return [key for key in names(blobs) if job.id not in key and job.input not in key]


def killed_loser(blobs: Blobs, job: Job) -> list[str]:
    """Of two requests with the same idempotency key."""
    left = OpenJob.of(replace(job, input="f" * 32))
    for key in (left.key, left.files[0]):
        blobs.write(key, b"")
    return [left.key, left.files[0]]


def damaged_record(blobs: Blobs, _: Job) -> list[str]:
    damaged = post(opened(blobs), "second")
    blobs.write(f"jobs/{damaged.id}.json", b"{")
    return [key for key in names(blobs) if damaged.id in key or damaged.input in key]


@pytest.mark.parametrize("leave", [killed_upload, killed_loser, damaged_record])
def test_what_is_left_of_no_job_stops_no_other_and_is_removed_later(blobs: Blobs, leave: Any) -> None:
    clock, job = Clock(), post(opened(blobs), key="1")
    left, jobs = leave(blobs, job), opened(blobs, clock)
    assert len(left) >= 2
    assert [one.id for one in jobs.unended()] == [one.id for one in jobs.newest()] == [job.id]
    for _ in range(2):
        jobs.sweep(keep=0)
        assert {*left} <= {*names(blobs)}
        clock.now += ABANDONED / 2 + 1
    jobs.sweep()
    assert not {*left} & {*names(blobs)}
    assert texts(jobs, begun(jobs).job) == ["first"]


def test_a_job_with_a_damaged_record_can_be_removed_by_its_owner(blobs: Blobs) -> None:
    jobs = opened(blobs)
    job = post(jobs)
    blobs.write(jobs.records.key(job.id), b"{")
    for call in (jobs.read, jobs.cancel):
        with pytest.raises(CorruptArtifact):
            call(job.id)
    assert not jobs.discard(job.id, "bob")
    assert len(names(blobs)) == 3
    assert jobs.discard(job.id, "ann")
    assert names(blobs) == []


def test_a_post_that_took_too_long_is_refused(blobs: Blobs) -> None:
    clock = Clock()

    def slow(operation: str, *_: object) -> None:
        clock.now += ABANDONED * (operation == "upload")

    with pytest.raises(Unavailable, match="took too long"):
        post(opened(Watched(blobs, slow), clock))
    assert names(blobs) == []


def test_a_record_that_cannot_be_read_stops_no_other_job_and_is_kept(blobs: Blobs) -> None:
    first, other, clock = post(opened(blobs)), post(opened(blobs), "second"), Clock()

    def fails(operation: str, *given: object) -> None:
        if operation == "read" and given == (f"jobs/{first.id}.json",):
            raise OSError(5, "Input/output error")

    jobs = opened(Watched(blobs, fails), clock)
    assert begun(jobs).job.id == other.id
    for _ in range(3):
        jobs.sweep(keep=0)
        clock.now += ABANDONED + 1
    assert [job.id for job in jobs.newest()] == [other.id]
    for whole in (jobs.unended, jobs.rested_on, lambda: jobs.newest(whole=True)):
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
    other = post(jobs, "second", "bob")

    def unreadable(_: Job) -> None:
        raise OSError("the domain cannot be read")

    taken = jobs.claim("worker", published=unreadable)
    assert taken is not None
    assert taken.job.id == other.id
    assert jobs.read(first.id).status is Status.PUBLISHING
    jobs.claim("other", published=lambda _: {"version": 1})
    assert jobs.read(first.id).status is Status.SUCCEEDED


def test_text_labels_and_vectors_arrive_as_they_were_posted(blobs: Blobs) -> None:
    jobs, pair = opened(blobs), LabelledPair("a", "b", 1.0, 2.0)
    with Spool() as spool:
        spool.extend(["first", pair, "zweiter\n"])
        spool.vectors.write(b"header123")
        spool.vectors.flush()
        job = jobs.create(REQUEST, spool, [])
        assert job.size == spool.size
    with jobs.posted(job) as posted:
        assert (list(posted.texts()), posted.labels()) == (["first", "zweiter\n"], [pair])
        assert posted.vectors is not None
        assert posted.vectors.read_bytes() == b"header123"
    with jobs.posted(post(jobs)) as posted:
        assert posted.vectors is None


@pytest.mark.parametrize("name", ["", "../x", "0" * 31, "0" * 33, "G" * 32])
def test_an_id_that_is_none_is_not_found(blobs: Blobs, name: str) -> None:
    for call in (opened(blobs).read, opened(blobs).cancel):
        with pytest.raises(NotFound, match="no calibration job"):
            call(name)
