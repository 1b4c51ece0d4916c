"""A job's record from its posting to its end, decided once."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from isosim import worker
from isosim.domains.store import DomainStore
from isosim.errors import Conflict, CorruptArtifact, IsosimError, JobCancelled, NotFound
from isosim.jobs.job import Job, JobRequest, LabelledPair, Status
from isosim.jobs.objects import ABANDONED, PART, BucketJobs
from isosim.jobs.store import SILENCE, JobStore
from isosim.scoring.calibration import DomainModel
from isosim.store.artifacts import FRESH
from tests.objects import Objects, objects  # noqa: F401 - a fixture

REQUEST = JobRequest("news", "d" * 64, "tiny")
TEXTS = ["A boat.", 'with "quotes"\nand lines', "лодка \u2028", ""]


@dataclass
class Clock:
    """This process's own; seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["folder", "bucket"])
def jobs(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """In a folder, and in object storage."""
    if request.param == "folder":
        return JobStore(tmp_path, clock)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return JobStore(request.getfixturevalue("objects").bucket(), clock)


@pytest.fixture
def in_folder(tmp_path: Path, clock: Clock) -> JobStore:
    return JobStore(tmp_path, clock)


@pytest.fixture
def in_bucket(objects: Objects, clock: Clock) -> JobStore:  # noqa: F811
    return JobStore(objects.bucket(), clock)


def contents(jobs: JobStore) -> dict[str, bytes]:
    """Everything that is kept, by name."""
    if isinstance(jobs.storage, BucketJobs):
        storage = jobs.storage.storage
        there = {entry.key: storage.read(entry.key)[0] for entry in storage.list("")}
        return there | {str(path): path.read_bytes() for path in jobs.scratch.glob(".spool-*")}
    return {str(path): path.read_bytes() for path in jobs.root.rglob("*") if path.is_file()}


def write_record(jobs: JobStore, job_id: str, content: str) -> None:
    if isinstance(jobs.storage, BucketJobs):
        jobs.storage.storage.write(f"jobs/records/{job_id}", content.encode())
    else:
        (jobs.root / job_id / "job.json").write_text(content)


def record_of(jobs: JobStore, job_id: str) -> dict[str, Any]:
    if isinstance(jobs.storage, BucketJobs):
        stored: dict[str, Any] = json.loads(jobs.storage.storage.read(f"jobs/records/{job_id}")[0])
    else:
        stored = json.loads((jobs.root / job_id / "job.json").read_text())
    return stored


def vanish(jobs: JobStore, job_id: str) -> None:
    """As where a process died that was about to remove the job's idempotency key, too."""
    if isinstance(jobs.storage, BucketJobs):
        jobs.storage.storage.delete([f"jobs/records/{job_id}"])
    else:
        shutil.rmtree(jobs.root / job_id)


def post(jobs: JobStore, texts: list[str] = TEXTS, key: str | None = None, request: JobRequest = REQUEST) -> Job:
    with jobs.spool() as spool:
        spool.extend(texts)
        return jobs.create(request, spool, ["a notice"], key)


def silent(jobs: JobStore, clock: Clock, job: Job) -> Job:
    """The job's worker has not been heard of for too long since the last look."""
    jobs.read(job.id)
    clock.now += SILENCE + 1
    return job


def at_once(count: int, call: Callable[[int], object]) -> list[object]:
    barrier = Barrier(count)

    def wait_and_call(number: int) -> object:
        barrier.wait()
        try:
            return call(number)
        except IsosimError as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_call, range(count)))


def test_a_posted_job_is_queued_and_has_its_text(jobs: JobStore) -> None:
    job = post(jobs)
    assert jobs.read(job.id) == job
    assert (job.status, job.request, job.notices, job.attempt) == (Status.QUEUED, REQUEST, ["a notice"], 0)
    assert list(jobs.texts(job.id)) == TEXTS
    assert jobs.counts() == {Status.QUEUED: 1}


def test_text_that_never_became_a_job_is_gone(jobs: JobStore) -> None:
    with pytest.raises(KeyboardInterrupt), jobs.spool() as spool:
        spool.extend(TEXTS)
        raise KeyboardInterrupt
    assert contents(jobs) == {}


@pytest.mark.parametrize(
    "job_id", ["../x", "..", "", ".", "0" * 31, "G" * 32, "0" * 33, "0" * 32 + "\n", "0" * 32, "a/" + "0" * 30]
)
def test_an_id_that_is_none_of_ours_is_not_found(jobs: JobStore, tmp_path: Path, job_id: str) -> None:
    post(jobs)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "job.json").write_text("{}")
    for call in (jobs.read, jobs.begin, jobs.requeue, jobs.decide, jobs.decided, jobs.interrupt):
        with pytest.raises(NotFound):
            call(job_id)


def test_the_same_key_and_content_give_the_same_job(jobs: JobStore) -> None:
    first = post(jobs, key="k")
    assert post(jobs, key="k") == first
    assert post(jobs, key="other").id != first.id
    assert post(jobs).id != first.id
    assert len(jobs.all()) == 3


@pytest.mark.parametrize("change", ["texts", "request"])
def test_the_same_key_with_other_content_is_a_conflict_and_makes_no_job(jobs: JobStore, change: str) -> None:
    post(jobs, key="k")
    with pytest.raises(Conflict, match="Idempotency-Key"):
        if change == "texts":
            post(jobs, [*TEXTS, "more"], key="k")
        else:
            post(jobs, key="k", request=replace(REQUEST, seed=1))
    (job,) = jobs.all()
    assert not [name for name in contents(jobs) if job.id not in name and "key" not in name and "idem" not in name]


def test_two_texts_are_not_one_text_with_the_same_letters(jobs: JobStore) -> None:
    post(jobs, ["ab", "c"], key="k")
    with pytest.raises(Conflict):
        post(jobs, ["a", "bc"], key="k")


def test_posts_with_one_key_at_the_same_time_make_one_job(jobs: JobStore) -> None:
    found = at_once(6, lambda _: post(jobs, key="k"))
    assert len({job.id for job in found if isinstance(job, Job)}) == 1
    assert len(found) == 6
    (job,) = jobs.all()
    assert list(jobs.texts(job.id)) == TEXTS


def test_a_key_whose_job_was_forgotten_can_be_used_again(jobs: JobStore) -> None:
    first = post(jobs, key="k")
    jobs.end(jobs.begin(first.id), Status.FAILED)
    jobs.forget(keep=0)
    assert post(jobs, key="k").id != first.id


def test_a_jobs_way_to_success(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id)
    assert (job.status, job.attempt, job.progress) == (Status.RUNNING, 1, 0.0)
    assert job.started is not None
    assert jobs.decide(job.id)
    done = jobs.end(replace(job, progress=0.9), Status.SUCCEEDED, version=3, promoted=True, report={"a": 1})
    assert jobs.read(job.id) == done
    assert (done.status, done.progress, done.version, done.promoted) == (Status.SUCCEEDED, 1.0, 3, True)
    assert done.finished is not None


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED])
def test_the_posted_text_goes_when_the_job_ends(jobs: JobStore, end: Status) -> None:
    job = jobs.begin(post(jobs, ["secret words"]).id)
    jobs.end(job, end)
    assert not any(b"secret" in content for content in contents(jobs).values())
    assert jobs.read(job.id).status.ended


def test_a_job_whose_time_is_over_fails_unless_its_end_was_decided_before(
    jobs: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    publishing = jobs.begin(post(jobs).id)
    assert jobs.decide(publishing.id, publishing.attempt)
    for job in (publishing, jobs.begin(post(jobs).id), post(jobs)):  # the last was killed before its attempt began
        jobs.time_out(job.id, 60.0)
        found = jobs.read(job.id)
        if job is publishing:
            assert found == publishing
        else:
            assert (found.status, "stopped after 60 s" in str(found.error)) == (Status.FAILED, True)
            assert not jobs.has_text(job.id)
            assert f"job {job.id}: stopped after 60 s" in caplog.text
    assert publishing.id not in caplog.text


@pytest.mark.parametrize("end", [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED])
def test_an_ended_job_neither_begins_nor_is_queued_again(jobs: JobStore, end: Status) -> None:
    job = jobs.end(jobs.begin(post(jobs).id), end)
    with pytest.raises(JobCancelled):
        jobs.begin(job.id)
    with pytest.raises(Conflict, match=end.value):
        jobs.requeue(job.id)


def test_a_running_job_does_not_begin_twice(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id)
    with pytest.raises(Conflict, match="elsewhere"):
        jobs.begin(job.id)
    with pytest.raises(Conflict):
        jobs.requeue(job.id)


def test_a_job_whose_worker_fell_silent_reads_interrupted_and_keeps_its_text(jobs: JobStore, clock: Clock) -> None:
    job = silent(jobs, clock, jobs.begin(post(jobs).id))
    found = jobs.read(job.id)
    assert found.status is Status.INTERRUPTED
    assert f"/calibrate/{job.id}/retry" in str(found.error)
    assert list(jobs.texts(job.id)) == TEXTS
    assert jobs.counts() == {Status.INTERRUPTED: 1}


@pytest.mark.parametrize("worker_clock", [0.0, -3600.0, 3600.0], ids=["right", "an hour behind", "an hour ahead"])
def test_a_worker_that_beats_is_alive_whatever_its_clock_says(
    jobs: JobStore, clock: Clock, worker_clock: float
) -> None:
    job = jobs.begin(post(jobs).id)
    for _ in range(3):
        jobs.beat(replace(job, heartbeat=time.time() + worker_clock))
        assert jobs.read(job.id).status is Status.RUNNING
        clock.now += SILENCE - 1
        assert jobs.read(job.id).status is Status.RUNNING
    clock.now += 2
    assert jobs.read(job.id).status is Status.INTERRUPTED
    jobs.beat(replace(job, heartbeat=time.time() + worker_clock))  # it was only slow
    assert jobs.read(job.id).status is Status.RUNNING


def test_a_worker_is_not_taken_for_dead_at_the_first_look(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id)
    jobs.beat(replace(job, heartbeat=0.0))
    assert jobs.read(job.id).status is Status.RUNNING


def test_an_interrupted_job_can_be_queued_and_begun_again(jobs: JobStore, clock: Clock) -> None:
    job = silent(jobs, clock, jobs.begin(post(jobs).id))
    jobs.decide(job.id)  # it died between deciding and recording its end
    queued = jobs.requeue(job.id)
    assert (queued.status, queued.error) == (Status.QUEUED, None)
    again = jobs.begin(job.id)
    assert (again.status, again.attempt) == (Status.RUNNING, 2)
    assert not jobs.decided(job.id)


def test_a_job_whose_worker_is_known_dead_is_interrupted_at_once(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id)
    assert jobs.interrupt(job.id).status is Status.INTERRUPTED
    assert jobs.read(job.id).status is Status.INTERRUPTED
    assert jobs.begin(job.id).attempt == 2


ENDINGS: dict[str, Callable[[JobStore, Job], object]] = {
    "decides": lambda jobs, job: jobs.decide(job.id, job.attempt),
    "has decided": lambda jobs, job: jobs.end(job, Status.SUCCEEDED, version=1),
    "fails": lambda jobs, job: worker.fail(jobs, job, "out of memory"),
    "is put off": lambda jobs, job: worker.put_off(jobs, job, OSError("no space")),
}


@pytest.mark.parametrize("begun", [True, False], ids=["runs", "waits"])
@pytest.mark.parametrize("way", ENDINGS)
def test_a_worker_that_was_taken_for_dead_does_not_end_the_attempt_after_its_own(
    jobs: JobStore, clock: Clock, way: str, begun: bool
) -> None:
    stalled = silent(jobs, clock, jobs.begin(post(jobs).id))
    successor = jobs.requeue(stalled.id)
    if begun:
        successor = jobs.begin(stalled.id)
    with contextlib.suppress(JobCancelled):
        assert not ENDINGS[way](jobs, stalled)
    assert jobs.read(stalled.id) == successor
    assert list(jobs.texts(stalled.id)) == TEXTS
    assert jobs.decide(stalled.id)


def test_of_those_who_decide_a_jobs_end_exactly_one_wins(jobs: JobStore) -> None:
    for _ in range(10):
        job = post(jobs, ["a"])
        assert Counter(at_once(6, lambda _: jobs.decide(job.id))) == {True: 1, False: 5}  # noqa: B023 - used up here
        assert jobs.decided(job.id)


def test_a_job_cancelled_while_it_waits_does_not_begin(jobs: JobStore) -> None:
    """The caller has won the decision and not yet recorded it when a worker takes the job."""
    job = post(jobs)
    assert jobs.decide(job.id)
    with pytest.raises(JobCancelled):
        jobs.begin(job.id)
    assert jobs.decided(job.id)


def test_jobs_are_listed_newest_first(jobs: JobStore) -> None:
    posted = [post(jobs, [str(number)]) for number in range(4)]
    assert [job.id for job in jobs.all()] == [job.id for job in reversed(posted)]


def test_of_ended_jobs_the_newest_are_kept_and_of_the_others_all(jobs: JobStore) -> None:
    ended = [jobs.end(jobs.begin(post(jobs, [str(n)]).id), Status.FAILED) for n in range(4)]
    queued, running = post(jobs), jobs.begin(post(jobs).id)
    jobs.forget(keep=2)
    assert {job.id for job in jobs.all()} == {job.id for job in (*ended[2:], queued, running)}


@pytest.mark.parametrize("content", ["", "{", "{}", '{"status": "queued"}', '{"request": {}, "status": "asleep"}'])
def test_a_record_that_is_not_understood_is_named_and_passed_over_in_the_list(jobs: JobStore, content: str) -> None:
    good, bad = post(jobs), post(jobs)
    write_record(jobs, bad.id, content)
    with pytest.raises(CorruptArtifact, match=bad.id):
        jobs.read(bad.id)
    assert jobs.all() == [good]


def test_a_record_with_fields_of_a_newer_release_is_read(jobs: JobStore) -> None:
    job = post(jobs)
    stored = record_of(jobs, job.id)
    newer = stored | {"colour": "blue", "request": stored["request"] | {"shape": "round"}}
    write_record(jobs, job.id, json.dumps(newer))
    assert jobs.read(job.id) == job


def test_a_discarded_job_is_gone_and_its_key_can_be_used_again(jobs: JobStore) -> None:
    first, other = post(jobs, key="k"), post(jobs, key="other")
    jobs.discard(first.id)
    assert jobs.all() == [other]
    assert post(jobs, key="k").id != first.id
    assert post(jobs, key="other") == other


def test_a_job_that_has_begun_is_not_discarded(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs, key="k").id)
    assert not jobs.discard(job.id)
    assert jobs.read(job.id) == job
    assert post(jobs, key="k") == job


@pytest.mark.parametrize("how", ["sweep", "forget"])
def test_what_a_killed_process_left_is_no_job_and_is_swept_away(in_folder: JobStore, how: str) -> None:
    jobs = in_folder
    job = post(jobs)
    left = [jobs.root / f"{kind}-{age}" for kind in (".building", ".spool") for age in ("old", "fresh")]
    for path in left:
        if path.name.startswith(".building"):
            path.mkdir()
        else:
            path.write_text('"secret words"')
        if path.name.endswith("old"):
            a_while_ago = time.time() - 2 * FRESH
            os.utime(path, (a_while_ago, a_while_ago))
    if how == "sweep":
        jobs.sweep()
    else:
        jobs.forget(keep=10)
    assert [path.exists() for path in left] == [False, True, False, True]
    assert jobs.all() == [job]


@pytest.mark.parametrize("how", ["sweep", "forget"])
def test_text_of_a_killed_process_stays_in_a_bucket_for_an_hour(in_bucket: JobStore, how: str) -> None:
    job = post(in_bucket)
    assert isinstance(in_bucket.storage, BucketJobs)
    in_bucket.spool().extend(["half of it"])  # less than a part, and never closed: nothing of it is there
    lost = in_bucket.spool()
    lost.extend([f"secret words {'x' * PART}"])
    for after, left in ((ABANDONED - 10, True), (ABANDONED + 10, False)):
        in_bucket.storage.now = lambda: datetime.now(UTC) + timedelta(seconds=after)  # noqa: B023 - used up here
        in_bucket.sweep() if how == "sweep" else in_bucket.forget(keep=10)
        assert any(b"secret" in content for content in contents(in_bucket).values()) is left
    assert in_bucket.all() == [job]
    assert list(in_bucket.texts(job.id)) == TEXTS


def test_text_that_is_still_arriving_stays_however_old_it_looks(in_folder: JobStore) -> None:
    jobs = in_folder
    with jobs.spool() as spool:
        spool.extend(TEXTS)
        (arriving,) = jobs.root.glob(".spool-*")
        os.utime(arriving, (0, 0))  # the clock has jumped
        jobs.sweep()
        assert list(jobs.texts(jobs.create(REQUEST, spool, [], None).id)) == TEXTS


def test_a_cancel_that_got_stuck_halfway_is_ended_and_its_text_goes(jobs: JobStore) -> None:
    stuck, retried, waiting = post(jobs), post(jobs), post(jobs)
    jobs.interrupt(jobs.begin(retried.id).id)
    jobs.requeue(retried.id)
    for job in (stuck, retried):
        jobs.decide(job.id)  # and then the process died, or found the disk full
    jobs.expire(age=3600)
    assert [jobs.read(job.id).status for job in (stuck, retried, waiting)] == [
        Status.CANCELLED, Status.CANCELLED, Status.QUEUED,
    ]  # fmt: skip
    assert [jobs.has_text(job.id) for job in (stuck, retried, waiting)] == [False, False, True]
    ended = jobs.read(stuck.id)
    assert jobs.cancel(stuck.id) == ended  # the canceller was only slow


def test_an_interrupted_job_that_nobody_retries_fails_and_its_text_goes(jobs: JobStore, clock: Clock) -> None:
    old, fresh, queued = post(jobs), post(jobs), post(jobs)
    jobs.interrupt(jobs.begin(old.id).id)
    jobs.expire(age=50)
    clock.now += 30
    jobs.interrupt(jobs.begin(fresh.id).id)
    jobs.expire(age=50)
    clock.now += 30
    jobs.expire(age=50)
    assert [jobs.read(job.id).status for job in (old, fresh, queued)] == [
        Status.FAILED, Status.INTERRUPTED, Status.QUEUED,
    ]  # fmt: skip
    assert [jobs.has_text(job.id) for job in (old, fresh, queued)] == [False, True, True]
    with pytest.raises(Conflict):
        jobs.requeue(old.id)
    assert jobs.requeue(fresh.id).status is Status.QUEUED


@pytest.mark.parametrize("written", [-1e9, 1e9], ids=["long ago", "in the future"])
def test_an_interrupted_job_keeps_its_text_whatever_the_clock_of_its_worker_said(
    jobs: JobStore, clock: Clock, written: float
) -> None:
    job = jobs.interrupt(jobs.begin(post(jobs).id).id)
    moved = replace(job, heartbeat=time.time() + written)
    jobs.storage.change(job.id, lambda record: replace(record, job=moved))
    jobs.expire(age=50)
    clock.now += 49
    jobs.expire(age=50)
    assert (jobs.read(job.id).status, jobs.has_text(job.id)) == (Status.INTERRUPTED, True)
    clock.now += 2
    jobs.expire(age=50)
    assert (jobs.read(job.id).status, jobs.has_text(job.id)) == (Status.FAILED, False)


def test_processes_that_look_in_turn_count_a_jobs_waiting_once_and_a_restart_does_not_begin_anew(
    jobs: JobStore, clock: Clock
) -> None:
    job = jobs.interrupt(jobs.begin(post(jobs).id).id)
    other = JobStore(jobs.root.parent, clock)
    for _ in range(5):  # every 10 s each of them looks
        for one in (jobs, other):
            one.expire(age=100)
            clock.now += 5
    assert jobs.read(job.id).waited == pytest.approx(40)
    restarted = JobStore(jobs.root.parent, clock)
    for _ in range(8):
        restarted.expire(age=100)
        clock.now += 10
    assert jobs.read(job.id).status is Status.FAILED


def test_a_job_that_is_retried_has_its_time_anew(jobs: JobStore, clock: Clock) -> None:
    job = jobs.interrupt(jobs.begin(post(jobs).id).id)
    for _ in range(2):
        jobs.expire(age=50)
        clock.now += 40
    jobs.requeue(job.id)
    jobs.interrupt(jobs.begin(job.id).id)
    for _ in range(2):
        jobs.expire(age=50)
        clock.now += 40
    assert jobs.read(job.id).status is Status.INTERRUPTED


def test_a_hand_over_that_comes_late_takes_nothing_from_the_attempt_after_it(jobs: JobStore, clock: Clock) -> None:
    """The queue takes the first attempt's worker for dead only after somebody has retried the job."""
    job = silent(jobs, clock, jobs.begin(post(jobs).id, handed=0))
    waiting = jobs.requeue(job.id)
    for late in ({"handed": 0, "dead": 1}, {"handed": 0}):
        with pytest.raises(Conflict, match="was queued again"):
            jobs.begin(job.id, **late)
    assert jobs.read(job.id) == waiting
    second = jobs.begin(job.id, handed=1)
    for late in ({"handed": 0, "dead": 1}, {"handed": 0}, {"handed": 1}):
        with pytest.raises(Conflict, match="running elsewhere"):
            jobs.begin(job.id, **late)
    assert jobs.read(job.id) == second
    assert jobs.decide(job.id, second.attempt)


def test_an_attempt_whose_process_is_known_dead_is_replaced_and_may_publish_nothing_more(jobs: JobStore) -> None:
    first = jobs.begin(post(jobs).id, handed=0)
    jobs.decide(first.id, first.attempt)  # it died, or seemed to, while it published
    second = jobs.begin(first.id, handed=0, dead=1)
    assert second.attempt == 2
    with pytest.raises(JobCancelled):
        jobs.check_turn(first)
    assert not jobs.beat(first)
    assert not jobs.decide(first.id, first.attempt)
    jobs.check_turn(second)
    assert jobs.decide(second.id, second.attempt)


def test_an_attempt_that_beats_is_heard_of_and_a_silent_or_later_one_is_not(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id)
    assert not jobs.beats(job.id, 1, 0.2)
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(jobs.beats, job.id, 1, 30.0)
        for n in range(100):
            jobs.beat(replace(job, heartbeat=float(n)))
            if heard.done():
                break
            time.sleep(0.1)
        assert heard.result()
    assert not jobs.beats(job.id, 2, 30.0)  # at once: it is another attempt's turn


def test_a_killed_process_changes_only_its_own_attempt(jobs: JobStore) -> None:
    """Attempt 1 was suspended, considered dead and then killed because its time was over."""
    job = jobs.begin(post(jobs).id)
    jobs.interrupt(job.id)
    second = jobs.begin(jobs.requeue(job.id).id)
    beating = threading.Event()

    def beat() -> None:
        for n in itertools.count(1):
            jobs.beat(replace(second, heartbeat=float(n)))
            if beating.wait(0.1):
                return

    with ThreadPoolExecutor(1) as pool:
        beats = pool.submit(beat)
        worker.lost(jobs, job.id, 1, 60)
        beating.set()
        beats.result()
    assert jobs.read(job.id).status is Status.RUNNING
    jobs.interrupt(job.id, attempt=2)
    worker.lost(jobs, job.id, 1, 60)
    assert jobs.read(job.id).status is Status.INTERRUPTED
    assert jobs.requeue(job.id).attempt == 2
    worker.lost(jobs, job.id, 2, 60)
    assert jobs.read(job.id).status is Status.QUEUED
    jobs.begin(job.id)
    worker.lost(jobs, job.id, 3, None)
    assert jobs.read(job.id).status is Status.INTERRUPTED


def test_a_killed_process_may_have_begun_no_attempt_or_several(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WATCHED", 0.1)
    none, several = post(jobs), jobs.begin(post(jobs).id)
    jobs.interrupt(several.id, "storage failed")
    jobs.begin(jobs.requeue(several.id).id)
    for job in (none, several):
        worker.lost(jobs, job.id, 1, 60)
        mine = job is none or jobs.distant  # with a folder, a process begins one attempt at most
        assert ("stopped after 60 s" in str(jobs.read(job.id).error)) is mine


def test_a_process_that_dies_before_it_can_begin_was_an_attempt(jobs: JobStore) -> None:
    """So that a retry is handed over under a name of its own, and replaces no newer champion."""
    job = jobs.interrupt(post(jobs).id)
    assert (job.status, job.attempt) == (Status.INTERRUPTED, 1)
    again = jobs.begin(jobs.requeue(job.id).id, handed=1, champion=7)
    assert (again.attempt, again.request.champion) == (2, None)


def test_the_first_attempt_notes_the_champion_and_later_ones_keep_it(jobs: JobStore) -> None:
    job = jobs.begin(post(jobs).id, champion=3)
    jobs.interrupt(job.id)
    assert jobs.begin(jobs.requeue(job.id).id, champion=5).request.champion == 3
    labels = replace(REQUEST, base=2, champion=2)
    assert jobs.begin(post(jobs, request=labels).id, champion=3).request.champion == 2


def test_a_key_whose_job_was_removed_by_a_process_that_died_can_be_used_again(jobs: JobStore) -> None:
    """It had removed the job, and not yet the key."""
    first, other = post(jobs, key="k"), post(jobs, key="other")
    vanish(jobs, first.id)
    if jobs.root.is_dir():
        (jobs.root / first.id).mkdir()  # of a removal that was cut off
    found = at_once(6, lambda _: post(jobs, key="k"))
    assert len({job.id for job in found if isinstance(job, Job)} - {first.id}) == 1
    assert len({job.id for job in jobs.all()} - {other.id}) == 1
    assert post(jobs, key="other") == other


def test_keys_of_removed_jobs_are_swept_away_with_the_next_that_is_forgotten(in_folder: JobStore) -> None:
    jobs = in_folder
    gone, kept, ended = post(jobs, key="gone"), post(jobs, key="kept"), post(jobs, key="ended")
    shutil.rmtree(jobs.root / gone.id)
    jobs.end(jobs.begin(ended.id), Status.FAILED)
    jobs.forget(keep=0)
    keys = [path for path in (jobs.root / "idempotency").iterdir() if not path.name.startswith(".")]
    assert [json.loads(path.read_text())["job"] for path in keys] == [kept.id]


def test_versions_that_unended_jobs_name_are_known(jobs: JobStore) -> None:
    queued, running, interrupted, ended = (
        post(jobs, request=replace(REQUEST, base=base, champion=base)) for base in (1, 2, 3, 4)
    )
    jobs.begin(running.id)
    jobs.interrupt(jobs.begin(interrupted.id).id)
    jobs.end(jobs.begin(ended.id), Status.FAILED)
    assert jobs.rested_on()["news"] == {1, 2, 3}
    assert jobs.rested_on()["other"] == set()
    assert queued.request.base == 1


READ_VECTORS = """
import sys
from pathlib import Path
from isosim.jobs.store import JobStore
with JobStore(Path(sys.argv[1])).vectors(sys.argv[2]) as path:
    print(path, flush=True)
    sys.stdin.read()
"""


def test_vectors_that_a_killed_process_had_fetched_are_swept(
    in_bucket: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_bucket.storage, "scratch", tmp_path)
    with in_bucket.spool() as spool:
        spool.extend_vectors(b"1234")
        job = in_bucket.create(REQUEST, spool, [], None)
    command = [sys.executable, "-c", READ_VECTORS, str(in_bucket.root.parent), job.id]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        assert reader.stdout is not None
        path = Path(reader.stdout.readline().strip())
        os.utime(path, (0, 0))
        in_bucket.sweep()
        assert path.read_bytes() == b"1234"
        reader.kill()
    in_bucket.sweep()
    assert not path.exists()


def test_text_larger_than_a_part_comes_back_line_by_line(in_bucket: JobStore) -> None:
    lines = [f"{number} {'x' * 1_000_003}" for number in range(2 * PART // 1_000_000 + 1)]
    with in_bucket.spool() as spool:
        for line in lines:
            spool.extend([line])
        spool.extend_labels([LabelledPair("a", "b", 1.0)])
        job = in_bucket.create(REQUEST, spool, [], None)
    assert sum("jobs/input/" in name for name in contents(in_bucket)) == 3
    assert list(in_bucket.texts(job.id)) == lines
    assert in_bucket.labels(job.id) == [("a", "b", 1.0, 1.0)]


def test_posted_vectors_are_a_file_while_they_are_read_and_go_when_the_job_ends(jobs: JobStore) -> None:
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    with jobs.spool() as spool:
        spool.extend_vectors(b"\0" * 128)
        spool.extend_vectors(rows.tobytes())
        spool.end_vectors(b"begin")
        job = jobs.create(REQUEST, spool, [], None)
    with jobs.vectors(job.id) as path:
        assert path is not None
        content = path.read_bytes()
    assert content[:5] == b"begin"
    assert content[128:] == rows.tobytes()
    with jobs.vectors(post(jobs).id) as path:
        assert path is None
    jobs.end(jobs.begin(job.id), Status.FAILED)
    assert not jobs.has_text(job.id)
    assert not any(rows.tobytes() in kept for kept in contents(jobs).values())


class Reading(JobStore):
    """Counts what it reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    def read(self, job_id: str) -> Job:
        self.reads[job_id] += 1
        return super().read(job_id)


def test_records_of_ended_jobs_are_read_once_and_lists_read_what_they_show(in_bucket: JobStore) -> None:
    ended = [in_bucket.end(in_bucket.begin(post(in_bucket, [str(n)]).id), Status.FAILED).id for n in range(5)]
    waiting = post(in_bucket)
    reading = Reading(in_bucket.root.parent)
    for _ in range(3):
        assert reading.counts() == {Status.FAILED: 5, Status.QUEUED: 1}
    assert reading.reads == {waiting.id: 3, **dict.fromkeys(ended, 1)}
    assert next(reading.newest()) == waiting
    assert reading.reads == {waiting.id: 4, **dict.fromkeys(ended, 2)}  # those that are shown with it


def test_of_writers_at_once_each_change_of_a_record_counts(jobs: JobStore) -> None:
    job = post(jobs)
    at_once(6, lambda number: jobs.storage.change(job.id, lambda record: with_notice(record, str(number))))
    assert sorted(jobs.read(job.id).notices) == sorted(["a notice", *map(str, range(6))])


def with_notice(record: Any, notice: str) -> Any:
    return replace(record, job=replace(record.job, notices=[*record.job.notices, notice]))


def test_an_attempt_that_stalls_while_it_publishes_cannot_publish_after_its_successor_began(
    in_bucket: JobStore,
) -> None:
    """It has asked for its turn, and comes back between this and the write after another worker has begun."""
    domains = DomainStore(in_bucket.root.parent)
    first = in_bucket.begin(post(in_bucket).id)
    in_bucket.decide(first.id, first.attempt)
    manifest = {"method": "identity", "encoder": {"id": "tiny", "digest": REQUEST.encoder}, "job": first.id}
    turns = []

    def stalled(version: int) -> None:
        in_bucket.check_turn(first, version)
        if not turns:
            second = in_bucket.begin(first.id, handed=0, dead=1)
            assert worker.published_before(in_bucket, domains, second) is None
        turns.append(version)

    with pytest.raises(JobCancelled):
        domains.publish("news", manifest, {}, None, DomainModel(), claim=stalled)
    assert turns == [1]
    assert domains.versions("news") == []
    assert not [name for name in contents(in_bucket) if name.startswith("domains/files")]
    second = in_bucket.read(first.id)
    claim: Any = lambda version: in_bucket.check_turn(second, version)  # noqa: E731
    assert domains.publish("news", manifest, {}, None, DomainModel(), claim=claim) == 2


def test_what_a_dead_attempt_has_promoted_is_the_jobs_result(jobs: JobStore) -> None:
    domains = DomainStore(jobs.root.parent)
    first = jobs.begin(post(jobs).id)
    jobs.decide(first.id, first.attempt)
    manifest = {"method": "identity", "encoder": {"id": "tiny", "digest": REQUEST.encoder}, "job": first.id}
    version = domains.publish("news", manifest, {"sentences": 4}, None, DomainModel())
    domains.promote("news", REQUEST.encoder, version, expected=domains.aliases("news", REQUEST.encoder))
    second = jobs.begin(first.id, handed=0, dead=1)
    done = worker.published_before(jobs, domains, second)
    assert done is not None
    assert (done.status, done.version, done.promoted) == (Status.SUCCEEDED, version, True)


def test_a_store_that_takes_no_heartbeats_is_logged_once_and_progress_does_not_hurry_it(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reporter, tries = worker.Reporter(jobs, jobs.begin(post(jobs).id)), []

    def full(job: Job) -> bool:
        tries.append(job)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level("INFO", "isosim.worker"):
        patched.setattr(jobs, "beat", full)
        for step in range(100):
            reporter("embedding", step / 100)
        reporter.try_to_beat()
    assert len(tries) < 10  # the first of the stage, one after each pause, and the last
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().endswith("cannot be written; the job goes on")
    with caplog.at_level("INFO", "isosim.worker"):
        reporter.try_to_beat()
    assert caplog.records[-1].getMessage().endswith("can be written again")
