"""The worker's own process and its children, which here are small programs in place of a calibration."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from isosim.domains.store import DomainStore
from isosim.errors import Unavailable
from isosim.jobs.hints import CHANNEL, NoHints, RedisHints
from isosim.jobs.job import Status
from isosim.jobs.pulse import Pulse, pulses, silences
from isosim.jobs.store import JobStore
from isosim.settings import Settings
from isosim.store.blobs import opened
from isosim.worker.calibrating import reason
from isosim.worker.supervisor import Worker
from tests.jobs.test_store import Clock, post
from tests.processes import RedisServer

BEGIN = """
import json, os, signal, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
lines = sock.makefile("r")
job = json.loads(lines.readline())["job"]
def say(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n")
def publish():
    say(publish=True)
    lines.readline()
    from isosim.domains.domain import Version
    from isosim.domains.store import DomainStore
    from isosim.store.blobs import opened
    import pathlib, tempfile
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "report.json").write_text('{"labels": {"notice": "few labels"}}')
        version = Version(0, "e" * 64, "minilm", "identity", {}, "", "", job["id"])
        domains = DomainStore(opened(os.environ["ISOSIM_MODEL_STORE"]))
        return domains.publish("a", pathlib.Path(folder), version, promote=lambda _: True).number
say(stage="fitting", progress=0.5)
"""
SUCCEED = "say(end={'version': publish(), 'report': {'labels': {'notice': 'few labels'}}, 'promoted': True})"
LINGER = "time.sleep(60)"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    monkeypatch.setenv("ISOSIM_MODEL_STORE", str(tmp_path))
    return JobStore(opened(tmp_path))


def worker(jobs: JobStore, program: str, clock: Clock | None = None, **settings: object) -> Worker:
    """A worker whose children run `program`."""
    own = JobStore(jobs.blobs) if clock is None else JobStore(jobs.blobs, clock)
    given = Settings(model_store=Path(jobs.blobs.address), **settings)  # type: ignore[arg-type]
    return Worker(given, own, DomainStore(jobs.blobs), NoHints(), [sys.executable, "-c", BEGIN + program])


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.05)


def serve(one: Worker) -> threading.Thread:
    thread = threading.Thread(target=one.serve, kwargs={"burst": True})
    thread.start()
    return thread


def test_a_job_is_published_and_its_text_is_deleted(jobs: JobStore) -> None:
    job, busy = post(jobs), []
    one = worker(jobs, SUCCEED)
    one.on_busy = busy.append
    one.serve(burst=True)
    end = jobs.read(job.id)
    assert (end.status, end.version, end.promoted, end.progress) == (Status.SUCCEEDED, 1, True, 1.0)
    assert end.notices == ["few labels"]
    assert busy == [True, False]
    assert [entry.key for entry in jobs.blobs.list("")][:1] == ["changes.json"]
    assert not [*jobs.blobs.list("open/"), *jobs.blobs.list("input/")]


def test_a_child_takes_the_next_job_and_is_gone_when_none_comes(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("isosim.worker.supervisor.WARM", 1.0)
    ids = [post(jobs, text).id for text in ("first", "second")]
    pids = tmp_path / "pids"
    note = f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}} ')\n"
    again = f"{note}{SUCCEED}\njob = json.loads(lines.readline())['job']\n"
    one = worker(jobs, again * 3)
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        until(lambda: all(jobs.read(id_).status is Status.SUCCEEDED for id_ in ids))
        (pid,) = set(pids.read_text().split())
        until(lambda: not alive(int(pid)), 5)
        late = post(jobs, "third")
        until(lambda: jobs.read(late.id).status is Status.SUCCEEDED)
    finally:
        one.stop()
        thread.join(10)
    assert not [pid for pid in pids.read_text().split() if alive(int(pid))]


def test_a_failure_is_recorded_with_its_reason(jobs: JobStore) -> None:
    job = post(jobs)
    worker(jobs, "say(end={'error': 'too few sentences'})").serve(burst=True)
    end = jobs.read(job.id)
    assert (end.status, end.error, end.attempt) == (Status.FAILED, "too few sentences", 1)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed while fitting, perhaps because memory ran out"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal 11 while fitting"),
        ("sys.exit(3)", "ended with exit code 3 while fitting"),
    ],
)
def test_a_job_whose_process_dies_is_tried_three_times(jobs: JobStore, program: str, why: str) -> None:
    job = post(jobs)
    worker(jobs, program).serve(burst=True)
    end = jobs.read(job.id)
    assert (end.status, end.attempt) == (Status.FAILED, 3)
    assert end.notices == [f"attempt {number}: the job's process {why}" for number in (1, 2, 3)]
    assert end.error == f"attempt 3: the job's process {why}; no further attempt is made"


def test_a_version_whose_process_died_after_publishing_is_found(jobs: JobStore) -> None:
    job = post(jobs)
    worker(jobs, "publish(); os.kill(os.getpid(), signal.SIGKILL)").serve(burst=True)
    end = jobs.read(job.id)
    assert (end.status, end.attempt, end.version, end.promoted) == (Status.SUCCEEDED, 1, 1, True)
    assert end.report is not None
    assert end.notices[1:] == ["few labels"]
    assert list(DomainStore(jobs.blobs).read("a").versions) == [1]


def test_a_storage_failure_leaves_the_job_to_another_attempt(jobs: JobStore) -> None:
    job = post(jobs)
    one = worker(jobs, "say(end={'storage': 'No space left on device'})")
    thread = serve(one)
    until(lambda: jobs.read(job.id).notices)
    one.stop()
    thread.join(10)
    again = jobs.read(job.id)
    assert again.status is Status.QUEUED
    assert again.notices == ["attempt 1: storage failed (No space left on device)"]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (OSError(28, "No space left on device", "/data/x"), {"storage": "No space left on device"}),
        (OSError("object storage s3://own/x: PUT http://10.0.0.5:9000/own/x: 503"), {"storage": "OSError"}),
        (
            Unavailable("no encoder 'e' in s3://own/x; s3://seed/y has none either"),
            {"error": "no encoder 'e' in the model store; the model store has none either"},
        ),
        (ValueError("/data/x"), {"error": "unexpected error (ValueError); the worker's log has it"}),
    ],
)
def test_the_reason_of_a_failure_names_no_place_of_the_server(error: Exception, end: dict[str, str]) -> None:
    assert reason(error, Settings(model_store=Path("s3://own/x"), seed_store=Path("s3://seed/y"))) == end


def test_a_worker_that_can_start_no_process_leaves_its_job_to_another(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isosim.worker.supervisor.STORAGE_REST", 0.1)
    job, one, files = post(jobs), worker(jobs, SUCCEED), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no files
    works, one.command = one.command, ["/nothing/is/here"]
    for number in (1, 2, 3, 4):
        attempt = one._claim()
        assert attempt is not None
        one.attend(attempt)
        left = jobs.read(job.id)
        assert (left.status, left.worker, left.spared) == (Status.QUEUED, None, number)
    assert left.notices[0] == "attempt 1: its process could not be started (No such file or directory)"
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208
    one.command = works
    one.serve(burst=True)
    assert jobs.read(job.id).status is Status.SUCCEEDED


def test_a_job_that_takes_too_long_fails(jobs: JobStore) -> None:
    job = post(jobs)
    worker(jobs, LINGER, job_timeout=1).serve(burst=True)
    end = jobs.read(job.id)
    assert (end.status, end.attempt) == (Status.FAILED, 1)
    assert end.error == "stopped after 1 s, the time limit of a job (ISOSIM_JOB_TIMEOUT)"


def test_a_cancelled_job_and_all_its_processes_are_stopped(jobs: JobStore, tmp_path: Path) -> None:
    job, pids = post(jobs), tmp_path / "pids"
    fork = f"child = os.fork()\nif child: open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}')\n"
    thread = serve(worker(jobs, fork + LINGER))
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    jobs.cancel(job.id)
    thread.join(10)
    assert not thread.is_alive()
    assert jobs.read(job.id).status is Status.CANCELLED
    until(lambda: not [pid for pid in pids.read_text().split() if alive(int(pid))])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_is_stopped_gives_its_job_back_after_its_drain_time(jobs: JobStore) -> None:
    job = post(jobs)
    one = worker(jobs, LINGER, drain_seconds=1)
    thread = serve(one)
    until(lambda: jobs.read(job.id).stage == "fitting")
    began = time.monotonic()
    one.stop()
    thread.join(10)
    assert time.monotonic() - began > 1
    again = jobs.read(job.id)
    assert (again.status, again.worker, again.spared) == (Status.QUEUED, None, 1)
    assert again.notices == ["attempt 1: its worker was stopped while fitting"]


def test_a_worker_that_is_stopped_lets_a_short_job_end(jobs: JobStore) -> None:
    job = post(jobs)
    one = worker(jobs, "time.sleep(1);" + SUCCEED, drain_seconds=20)
    thread = serve(one)
    until(lambda: jobs.read(job.id).stage == "fitting")
    one.stop()
    thread.join(20)
    assert jobs.read(job.id).status is Status.SUCCEEDED


def test_a_worker_that_was_taken_for_dead_leaves_the_job_to_the_other(jobs: JobStore) -> None:
    job, clock = post(jobs), Clock()
    first = worker(jobs, LINGER)
    thread = serve(first)
    until(lambda: jobs.read(job.id).stage == "fitting")
    watcher = JobStore(jobs.blobs, clock)
    watcher.claim("other")
    taken = None
    while taken is None:  # the first worker beats meanwhile, so it is taken by a clock that jumps
        clock.now += 1e6
        taken = watcher.claim("other") or watcher.claim("other")
    thread.join(10)
    assert not thread.is_alive()
    assert jobs.read(job.id).attempt == 2
    taken.end(Status.FAILED, error="unfit")


def test_a_store_that_fails_while_a_job_runs_does_not_stop_it(jobs: JobStore, tmp_path: Path) -> None:
    job = post(jobs)
    one = worker(jobs, "time.sleep(3);" + SUCCEED)
    thread = serve(one)
    until(lambda: jobs.read(job.id).stage == "fitting")
    (tmp_path / "jobs").rename(tmp_path / "away")
    (tmp_path / "jobs").write_text("not a folder")
    time.sleep(3)
    (tmp_path / "jobs").unlink()
    (tmp_path / "away").rename(tmp_path / "jobs")
    thread.join(20)
    assert jobs.read(job.id).status is Status.SUCCEEDED


def test_a_worker_without_jobs_waits_for_them(jobs: JobStore) -> None:
    one = worker(jobs, SUCCEED)
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        time.sleep(0.5)
        job = post(jobs)
        until(lambda: jobs.read(job.id).status is Status.SUCCEEDED)
    finally:
        one.stop()
        thread.join(10)


def test_a_hint_wakes_a_waiting_worker_and_a_lost_redis_only_its_clock(redis_server: RedisServer) -> None:
    from redis import Redis

    hints = RedisHints(redis_server.url)
    assert hints.wait(5.0)  # it has subscribed, and there may have been hints before
    began = time.monotonic()
    assert not hints.wait(0.2)
    threading.Timer(0.3, lambda: Redis.from_url(redis_server.url).publish(CHANNEL, b"")).start()
    assert hints.wait(10.0)
    assert time.monotonic() - began < 5
    redis_server.kill()
    began = time.monotonic()
    assert not hints.wait(0.3)
    assert not hints.wait(0.3)
    assert 0.3 < time.monotonic() - began < 5


def test_a_pulse_shows_how_long_a_worker_has_been_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert silences() == {}
    pulse = Pulse()
    pulse()
    assert silences().keys() == {os.getpid()}
    time.sleep(0.2)
    assert 0.2 <= silences()[os.getpid()] < 5
    pulse.close()
    assert silences() == {}


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_pulse_follows_no_link_that_another_user_may_have_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, link: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    if link == "folder":
        pulses().symlink_to(victim)
    else:
        pulses().mkdir()
        (victim / "precious").write_text("0.0")
        (pulses() / str(os.getpid())).symlink_to(victim / "precious")
    Pulse()()
    assert [path.read_text() for path in victim.iterdir()] == ["0.0"] * (link == "file")
    assert silences() == {}


def test_a_pulse_is_not_looked_for_in_the_folder_of_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Pulse()()
    assert silences().keys() == {os.getpid()}
    here = pulses()
    monkeypatch.setattr("isosim.jobs.pulse.pulses", lambda: here)
    monkeypatch.setattr("os.getuid", lambda: os.stat(here).st_uid + 1)  # noqa: PTH116
    (here / str(os.getpid())).write_text("0.0\n")
    Pulse()()
    assert (here / str(os.getpid())).read_text() == "0.0\n"
    assert silences() == {}
