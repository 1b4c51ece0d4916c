"""Jobs in the store, a folder or a bucket: each ends once, also if workers die, hang or are replaced."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isosim.errors import Conflict, CorruptArtifact, JobCancelled, NotFound, Unavailable
from isosim.jobs.job import ATTEMPTS, Job, JobRequest, LabelledPair, Status
from isosim.jobs.posted import Spool
from isosim.jobs.store import ABANDONED, SILENCE, Attempt, JobStore, OpenJob
from isosim.store.blobs import Blobs
from tests.store.conftest import Open
from tests.store.machines import Crashing, Killed, run_on

REQUEST = JobRequest("a", "e" * 64, "minilm", promote="never")
WORKERS = st.integers(0, 1)
OWNERS = st.sampled_from(["ann", "bob"])
KEYS = st.sampled_from([None, "1", "2"])
TEXTS = st.sampled_from(["first", "second"])
ENDS = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)


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
        except JobCancelled:
            with pytest.raises(JobCancelled):
                self.attempt.beat("fitting", 0.5)
            self.attempt = None
            return False
        if self.attempt.job.worker is None:
            self.attempt = None
        return True


class Machine(RuleBasedStateMachine):
    """Two workers and an API process, any of which may die, beside the jobs that were acknowledged."""

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
        self.unsure: set[tuple[str, str | None]] = set()  # keys of posts that were killed: there may be a job

    @initialize()
    def posts_one(self) -> None:
        self.posts("ann", "1", "first")

    @rule(owner=OWNERS, key=KEYS, text=TEXTS)
    def posts(self, owner: str, key: str | None, text: str) -> None:
        before = self.keys.get((owner, key))
        holder = None if key is None or before is None or before in self.freed else before
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

    @rule(worker=WORKERS, what=WORK, seconds=st.sampled_from([1.0, SILENCE, SILENCE + 1]))
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
            assert job.attempt == before.attempt + 1
            assert before.worker is None or mine.clock.now > SILENCE
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
        except Conflict:
            assert before.status is Status.PUBLISHING or before.status.ended
        else:
            assert before.status in (Status.QUEUED, Status.RUNNING)

    @rule(what=st.sampled_from(["cancels", "cancels", "frees", "sweeps"]), at=st.integers(0, 3))
    def asks(self, what: str, at: int) -> None:
        unended = sorted(name for name, job in self.known.items() if not job.status.ended) or sorted(self.known)
        job = unended[at % len(unended)]
        if what == "cancels":
            self.cancels(job)
        elif what == "sweeps":
            self.api.sweep()
        else:
            self.api.free_keys([self.known[job]])
            self.freed.add(job)

    @rule(
        what=st.sampled_from(["posts", "claims", "cancels", "sweeps", "goes on", "fails", "gives back", "beats"]),
        at=st.integers(1, 9),
        after=st.booleans(),
        worker=WORKERS,
        key=KEYS,
    )
    def is_killed(self, what: str, at: int, after: bool, worker: int, key: str | None) -> None:
        mine = self.workers[worker]
        self.crashing.left, self.crashing.after = at, after
        try:
            if what == "posts":
                self.unsure.add(("ann", key))
                with suppress(Conflict):
                    post(self.api, "first", "ann", key)
            elif what == "claims":
                if mine.attempt is None:
                    mine.claim()
            elif what == "sweeps":
                self.api.sweep()
            elif what == "cancels" and self.known:
                with suppress(Conflict):
                    self.api.cancel(max(self.known, key=lambda name: not self.known[name].status.ended))
            elif mine.attempt is not None:
                mine.does(what)
        except Killed:
            if what in ("posts", "cancels", "sweeps"):
                self.api = JobStore(self.crashing)  # type: ignore[arg-type]
            else:
                self.crashing.left = -1
                self.dies(worker)
        self.crashing.left = -1

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        index = {entry.key for entry in self.other.index()}
        for name, before in self.known.items():
            job = self.other.read(name)
            assert job.attempt >= before.attempt
            assert job.attempt - job.spared <= ATTEMPTS
            if before.status.ended:
                assert replace(job, freed=before.freed) == before
            elif before.status is Status.PUBLISHING:
                assert job.status is not Status.CANCELLED
            if not job.status.ended:
                assert OpenJob.of(job).key in index
                assert texts(self.other, job) == [self.texts[name]]
            if job.status is Status.CANCELLED:
                assert name not in self.versions
            if job.status is Status.SUCCEEDED:
                assert job.version == self.versions[name]
            self.known[name] = job

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
                assert job.status in ENDS
                assert (name in self.versions) is (job.status is Status.SUCCEEDED) or job.status is Status.FAILED
            left = [entry.key for entry in self.other.blobs.list("") if not entry.key.startswith("jobs/")]
            assert left == []
        finally:
            self.crashing.blobs.delete([entry.key for entry in list(self.crashing.blobs.list(""))])


def test_each_job_runs_to_one_end_whoever_dies(place: Open) -> None:
    run_on(place, Machine, examples=5 if "s3" in place().address else 100)


class Slow:
    """A store whose operations do something first."""

    def __init__(self, blobs: Blobs, first: Callable[[str], object]) -> None:
        self.blobs, self.first = blobs, first

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blobs, name)
        if not callable(method):
            return method

        def call(*given: Any, **named: Any) -> Any:
            self.first(name)
            return method(*given, **named)

        return call


def opened(blobs: Any, clock: Clock | None = None) -> JobStore:
    return JobStore(blobs, clock or Clock())


def begun(jobs: JobStore) -> Attempt:
    attempt = jobs.claim(next(NAMES))
    assert attempt is not None
    return attempt


def names(blobs: Blobs, prefix: str) -> list[str]:
    return [entry.key for entry in blobs.list(prefix)]


def test_a_claim_and_an_end_that_are_killed_at_any_operation_lose_nothing(place: Open) -> None:
    for what in ("claim", "end"):
        for at in count(1):
            if not killed_at(place(), what, at):
                break
            for entry in list(place().list("")):
                place().delete([entry.key])
        assert at > 3


def killed_at(blobs: Blobs, what: str, at: int) -> bool:
    """Kills a claim or an end before its operation `at` and after it. Returns whether it has so many operations."""
    for after in (False, True):
        job = post(opened(blobs))
        crashing = Crashing(blobs)
        attempt = begun(opened(crashing)) if what == "end" else None
        crashing.left, crashing.after = at, after
        try:
            attempt.end(Status.FAILED, error="unfit") if attempt else begun(opened(crashing))
        except Killed:
            clock = Clock()
            other = opened(blobs, clock)
            other.claim("other")
            clock.now = SILENCE + 1
            again = other.claim("other")
            now = other.read(job.id)
            assert now.status in (Status.RUNNING, Status.FAILED)
            if now.status is Status.RUNNING:
                assert texts(other, now) == ["first"]
                assert again is not None or now.attempt == 1
            else:
                assert names(blobs, "open/") == names(blobs, "input/") == []
            blobs.delete(names(blobs, ""))
        else:
            return False
    return True


def test_owners_take_turns(blobs: Blobs) -> None:
    jobs, posting = opened(blobs), opened(blobs)
    for text in ("1", "2", "3"):
        post(posting, text, "ann")
    post(posting, "4", "bob")
    order = []
    for number in range(6):
        attempt = begun(jobs)
        order.append(attempt.job.owner)
        attempt.end(Status.FAILED, error="unfit")
        if number < 2:
            post(posting, f"more {number}", "bob")  # he posts again whenever one of his jobs may have ended
    assert order == ["ann", "bob", "ann", "bob", "ann", "bob"]


def test_the_oldest_job_of_an_owner_comes_first(blobs: Blobs) -> None:
    jobs = opened(blobs)
    posted = [post(jobs, str(number)).id for number in range(3)]
    assert [begun(jobs).job.id for _ in posted] == posted


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
        attempt.beat("fitting", 0.6)
    with pytest.raises(JobCancelled):
        attempt.end(Status.FAILED, error="unfit")
    taken.end(Status.SUCCEEDED, version=1)


def test_a_watcher_that_was_stopped_does_not_take_its_pause_for_silence(blobs: Blobs) -> None:
    clock = Clock()
    post(opened(blobs))
    attempt = begun(opened(blobs))

    def stopped(operation: str) -> None:
        clock.now += 2 * SILENCE * (operation == "list")

    other = JobStore(Slow(blobs, stopped), clock)  # type: ignore[arg-type]
    assert [other.claim("other"), other.claim("other")] == [None, None]  # it has read the record twice at one time
    attempt.beat("fitting", 0.5)


class Losing(Slow):
    """A store whose answers to writes are lost while `lose` is set."""

    lose = False

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs, lambda _: None)

    def write(self, *given: Any, **named: Any) -> str:
        tag: str = self.blobs.write(*given, **named)
        if self.lose:
            raise OSError("the answer was lost")
        return tag


def test_a_claim_whose_answer_was_lost_goes_on(blobs: Blobs) -> None:
    store, first = Losing(blobs), post(opened(blobs))
    jobs = opened(store)
    store.lose = True
    with pytest.raises(OSError, match="lost"):
        jobs.claim("worker")
    store.lose = False
    post(opened(blobs), "second", "bob")
    assert opened(blobs).read(first.id).attempt == 1
    attempt = jobs.claim("worker")
    assert attempt is not None
    assert (attempt.job.id, attempt.job.attempt, attempt.job.notices) == (first.id, 1, [])
    attempt.publish()
    assert jobs.claim("worker", published=lambda _: {"version": 1}).job.owner == "bob"  # type: ignore[union-attr]
    assert jobs.read(first.id).status is Status.SUCCEEDED


def test_a_heartbeat_whose_answer_was_lost_is_not_taken_for_another_worker(blobs: Blobs) -> None:
    store = Losing(blobs)
    post(opened(blobs))
    attempt = begun(opened(store))
    store.lose = True
    with pytest.raises(OSError, match="lost"):
        attempt.publish()
    store.lose = False
    assert opened(blobs).read(attempt.job.id).status is Status.PUBLISHING
    attempt.beat("publishing", 1.0)
    assert attempt.job.status is Status.PUBLISHING
    attempt.end(Status.SUCCEEDED, version=1)


@pytest.mark.parametrize("silent", [False, True])
def test_a_job_fails_after_three_attempts_with_the_reason_of_the_last(blobs: Blobs, silent: bool) -> None:
    clock = Clock()
    jobs, job = opened(blobs, clock), post(opened(blobs))
    for number in (1, 2, 3):
        attempt = begun(jobs)
        assert attempt.job.attempt == number
        attempt.beat(f"stage {number}", 0.5)
        if silent:
            jobs.claim("other")
            clock.now += SILENCE + 1
        else:
            attempt.give_back(f"it died while stage {number}")
    assert jobs.claim("worker") is None
    end = jobs.read(job.id)
    why = "its worker fell silent" if silent else "it died"
    assert (end.status, end.attempt) == (Status.FAILED, 3)
    assert end.error == f"attempt 3: {why} while stage 3; no further attempt is made"
    assert names(blobs, "open/") == names(blobs, "input/") == []


def test_attempts_of_workers_that_are_told_to_stop_do_not_count(blobs: Blobs) -> None:
    jobs, job = opened(blobs), post(opened(blobs))
    for _ in range(5):
        begun(jobs).give_back("its worker was stopped", counts=False)
    assert jobs.read(job.id).status is Status.QUEUED
    assert begun(jobs).job.attempt == 6


def test_a_version_of_an_attempt_that_died_is_found(blobs: Blobs) -> None:
    jobs, job = opened(blobs), post(opened(blobs))
    for number in range(3):
        attempt = begun(jobs)
        if number:  # the attempt before may still publish
            with pytest.raises(Conflict, match="can no longer be cancelled"):
                jobs.cancel(job.id)
        attempt.publish()
        attempt.give_back("it died")
        with pytest.raises(Conflict, match="is publishing its result and can no longer be cancelled"):
            jobs.cancel(job.id)
    assert jobs.claim("worker", published=lambda _: {"version": 7, "promoted": True}) is None
    end = jobs.read(job.id)
    assert (end.status, end.version, end.promoted, end.attempt) == (Status.SUCCEEDED, 7, True, 3)


def test_the_first_attempt_records_the_champion(blobs: Blobs) -> None:
    jobs = opened(blobs)
    post(jobs)
    first = jobs.claim("worker", champion=lambda _: 4)
    assert first is not None
    first.give_back("it died")
    again = jobs.claim("worker", champion=lambda _: 5)
    assert again is not None
    assert again.job.request.champion == 4
    assert jobs.rested_on() == {"a": {4}}


def test_a_cancelled_job_stops_its_worker_and_leaves_no_text(blobs: Blobs) -> None:
    jobs = opened(blobs)
    job = post(jobs)
    attempt = begun(opened(blobs))
    assert jobs.cancel(job.id).status is Status.CANCELLED
    with pytest.raises(JobCancelled, match="was cancelled"):
        attempt.publish()
    with pytest.raises(Conflict, match="is cancelled already"):
        jobs.cancel(job.id)
    assert names(blobs, "open/") == names(blobs, "input/") == []
    with pytest.raises(Unavailable, match="the posted text is gone"), jobs.posted(job):
        pass


def test_of_two_equal_requests_at_once_the_second_changes_nothing(blobs: Blobs) -> None:
    first: list[Job] = []

    def before(operation: str) -> None:
        if operation == "upload" and not first:
            first.append(post(opened(blobs), key="1"))

    second = post(opened(Slow(blobs, before)), key="1")
    assert [second] == first
    assert texts(opened(blobs), second) == ["first"]
    assert len(names(blobs, "input/")) == len(names(blobs, "open/")) == 1


def test_what_a_killed_loser_of_two_equal_requests_has_left_is_removed(blobs: Blobs) -> None:
    clock, job = Clock(), post(opened(blobs), key="1")
    left = OpenJob.of(replace(job, input="f" * 32))
    blobs.write(left.key, b"")
    blobs.write(left.files[0], b'"first"\n')
    jobs = opened(blobs, clock)
    assert [one.id for one in jobs.unended()] == [job.id]
    for _ in range(2):
        jobs.sweep()
        clock.now += ABANDONED + 1
    jobs.sweep()
    assert len(names(blobs, "input/")) == len(names(blobs, "open/")) == 1
    assert texts(jobs, job) == ["first"]


def test_a_key_of_other_content_is_a_conflict_and_keys_belong_to_their_owner(blobs: Blobs) -> None:
    jobs = opened(blobs)
    job = post(jobs, key="1")
    assert post(jobs, key="1") == job
    assert post(jobs, key="1", request=replace(REQUEST, epoch=3)) == job  # the server's own field
    for text, request in (("second", REQUEST), ("first", replace(REQUEST, seed=1))):
        with pytest.raises(Conflict, match="Idempotency-Key was used for another calibration"):
            post(jobs, text, key="1", request=request)
    assert post(jobs, key="1", owner="bob").id != job.id
    assert (jobs.has_key("ann", "1"), jobs.has_key("ann", "2")) == (True, False)
    assert len(jobs.unended()) == len(names(blobs, "input/")) == 2


def test_a_freed_key_makes_a_new_job_and_stays_with_it(blobs: Blobs) -> None:
    reads: list[str] = []
    jobs = opened(Slow(blobs, reads.append))
    chain = []
    for number in range(5):
        job = post(jobs, f"text {number}", key="1")
        chain.append(job)
        jobs.cancel(job.id)
        if number < 4:
            jobs.free_keys([*chain, replace(job, first="0" * 32)])
    assert len({job.id for job in chain}) == 5
    jobs.sweep(keep=1)
    kept = {chain[0].id, chain[4].id}  # the first leads to the last
    assert {job.id for job in jobs.newest()} == kept
    reads.clear()
    assert jobs.has_key("ann", "1")
    assert reads == ["read", "read"]
    assert post(jobs, "text 4", key="1").id == chain[4].id
    jobs.free_keys(chain)
    jobs.sweep(keep=0)
    assert names(blobs, "jobs/") == []


def test_the_first_job_of_a_key_is_kept_while_the_next_is_being_posted(blobs: Blobs) -> None:
    jobs = opened(blobs)
    first = post(jobs, key="1")
    jobs.cancel(first.id)
    jobs.free_keys([first])

    def sweeps(operation: str) -> None:
        if operation == "upload":
            opened(blobs).sweep(keep=0)

    job = post(opened(Slow(blobs, sweeps)), key="1")
    assert job.id != first.id
    assert post(jobs, key="1") == job


def test_listings_are_newest_first_and_read_an_ended_job_once(blobs: Blobs) -> None:
    reads = []
    jobs = opened(Slow(blobs, reads.append))
    posted = [post(jobs, str(number)) for number in range(4)]
    for job in posted[:3]:
        jobs.cancel(job.id)
    assert [job.id for job in jobs.newest()] == [job.id for job in reversed(posted)]
    reads.clear()
    found = jobs.newest()
    assert [job.status for job in found] == [Status.QUEUED, *[Status.CANCELLED] * 3]
    assert reads.count("read") == 1
    jobs.sweep(keep=2)
    assert [job.id for job in jobs.newest()] == [posted[3].id, posted[2].id, posted[1].id]
    with pytest.raises(NotFound):
        jobs.read(posted[0].id)


def test_a_removed_job_that_comes_back_with_its_key_is_a_new_one(blobs: Blobs) -> None:
    jobs, other = opened(blobs), opened(blobs)
    first = post(jobs, key="1")
    jobs.cancel(first.id)
    assert [job.id for job in other.newest()] == [first.id]
    post(jobs, "second")
    begun(jobs).end(Status.FAILED, error="unfit")
    jobs.sweep(keep=1)
    again = post(jobs, key="1")
    assert again.id == first.id
    begun(jobs).end(Status.SUCCEEDED, version=1)
    other.sweep(keep=1)
    assert [(job.id, job.status) for job in other.newest()] == [(again.id, Status.SUCCEEDED)]


def test_an_upload_that_was_killed_is_removed_later(blobs: Blobs) -> None:
    clock = Clock()
    crashing = Crashing(blobs)
    crashing.left, crashing.after = 2, True
    with pytest.raises(Killed):
        post(opened(crashing))
    jobs = opened(blobs, clock)
    assert len(names(blobs, "input/")) == 1
    for _ in range(2):
        assert jobs.claim("worker") is None
        assert len(names(blobs, "input/")) == 1
        clock.now += ABANDONED / 2 + 1
    jobs.sweep()
    assert names(blobs, "") == []


def test_a_post_that_took_too_long_is_refused(blobs: Blobs) -> None:
    clock = Clock()

    def slow(operation: str) -> None:
        clock.now += ABANDONED * (operation == "upload")

    with pytest.raises(Unavailable, match="took too long"):
        post(opened(Slow(blobs, slow), clock))
    assert names(blobs, "") == []


def test_a_lost_entry_of_the_index_is_written_again(blobs: Blobs) -> None:
    jobs, job = opened(blobs), post(opened(blobs))
    blobs.delete(names(blobs, "open/"))
    assert jobs.claim("worker") is None
    jobs.sweep()
    assert begun(jobs).job.id == job.id


@pytest.mark.parametrize("ended", [False, True])
def test_a_damaged_record_stops_no_other_job_and_is_removed_with_its_text(blobs: Blobs, ended: bool) -> None:
    clock = Clock()
    jobs = opened(blobs, clock)
    damaged, other = post(jobs), post(jobs, "second")
    if ended:
        jobs.cancel(damaged.id)
    blobs.write(jobs.records.key(damaged.id), b"{")
    assert begun(jobs).job.id == other.id
    assert [job.id for job in jobs.newest()] == [other.id]
    with pytest.raises(CorruptArtifact):
        jobs.read(damaged.id)
    for _ in range(2):
        jobs.sweep(keep=0)
        assert [(entry.id == damaged.id) for entry in jobs.index()].count(True) == (not ended)
        clock.now += ABANDONED / 2 + 1
    jobs.sweep()
    assert [entry.id for entry in jobs.index()] == [other.id]
    assert len(names(blobs, "input/")) == 1
    assert ended or names(blobs, "jobs/") == [jobs.records.key(other.id)]


def test_a_job_with_a_damaged_record_can_be_removed_by_its_owner(blobs: Blobs) -> None:
    jobs = opened(blobs)
    job = post(jobs)
    blobs.write(jobs.records.key(job.id), b"{")
    assert not jobs.discard(job.id, "bob")
    assert len(names(blobs, "")) == 3
    assert jobs.discard(job.id, "ann")
    assert names(blobs, "") == []


class Failing(Slow):
    """A store that cannot read one object."""

    def __init__(self, blobs: Blobs, key: str) -> None:
        super().__init__(blobs, lambda _: None)
        self.key = key

    def read(self, key: str) -> tuple[bytes, str]:
        if key == self.key:
            raise OSError(5, "Input/output error")
        return self.blobs.read(key)


def test_a_record_that_cannot_be_read_stops_no_other_job_and_is_kept(blobs: Blobs) -> None:
    first, other, clock = post(opened(blobs)), post(opened(blobs), "second"), Clock()
    jobs = JobStore(Failing(blobs, f"jobs/{first.id}.json"), clock)  # type: ignore[arg-type]
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
    with pytest.raises(NotFound, match="no calibration job"):
        opened(blobs).read(name)
    with pytest.raises(NotFound, match="no calibration job"):
        opened(blobs).cancel(name)
