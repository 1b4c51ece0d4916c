"""The worker's own process and its children, which here are small programs in place of a calibration."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from isosim.domains.store import DomainStore
from isosim.errors import Unavailable
from isosim.jobs.hints import CHANNEL, RedisHints
from isosim.jobs.job import MatchInput, Status
from isosim.jobs.matches import place_of
from isosim.jobs.pulse import Pulse, pulses, silences
from isosim.jobs.store import JobStore
from isosim.settings import Settings
from isosim.store.blobs import opened
from isosim.worker import supervisor
from isosim.worker.calibrating import reason
from isosim.worker.supervisor import Worker
from tests.jobs.conftest import Clock, post
from tests.processes import RedisServer, wait_until
from tests.store.conftest import in_memory

BEGIN = """
import json, os, signal, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
lines = sock.makefile("r")
job = json.loads(lines.readline())["job"]
def say(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n")
def publish():
    import pathlib, tempfile
    say(publish=True)
    pathlib.Path(os.environ["ISOSIM_MODEL_STORE"], "asked").touch()
    lines.readline()
    from isosim.domains.domain import Version
    from isosim.domains.store import DomainStore
    from isosim.store.blobs import opened
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "report.json").write_text('{"labels": {"notice": "few labels"}}')
        version = Version(0, "e" * 64, "minilm", "identity", {}, "", "", job["id"])
        domains = DomainStore(opened(os.environ["ISOSIM_MODEL_STORE"]))
        return domains.publish("a", pathlib.Path(folder), version, promote=lambda _: True).number
say(stage="fitting", progress=0.5)
"""
SUCCEED = "say(end={'version': publish(), 'report': {'labels': {'notice': 'few labels'}}, 'promoted': True})"
LINGER = "time.sleep(600)"
NOTE = "open(os.environ['PIDS'], 'a').write(f'{os.getpid()} ')\n"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    monkeypatch.setenv("ISOSIM_MODEL_STORE", str(tmp_path))
    return JobStore(opened(tmp_path))


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where children note their ids (NOTE)."""
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    (tmp_path / "pids").touch()
    return tmp_path / "pids"


def worker(jobs: JobStore, program: str, **settings: object) -> Worker:
    """A worker whose children run `program`."""
    given = Settings(model_store=Path(jobs.blobs.address), **settings)  # type: ignore[arg-type]
    return Worker(given, JobStore(jobs.blobs), DomainStore(jobs.blobs), None, [sys.executable, "-c", BEGIN + program])


def died(why: str) -> dict[str, Any]:
    """The end of a job whose process has died three times."""
    notices = [f"attempt {number}: the job's process {why}" for number in (1, 2, 3)]
    error = f"{notices[-1]}; no further attempt is made"
    return {"status": Status.FAILED, "attempt": 3, "notices": notices, "error": error}


KILLED = "was killed while fitting, perhaps because memory ran out"
PUBLISHED = {"status": Status.SUCCEEDED, "attempt": 1, "version": 1, "promoted": True, "progress": 1.0}
ENDS: list[tuple[str, dict[str, object], dict[str, Any]]] = [
    (SUCCEED, {}, PUBLISHED | {"notices": ["few labels"]}),
    ("say(end={'error': 'too few'})", {}, {"status": Status.FAILED, "error": "too few", "attempt": 1}),
    ("os.kill(os.getpid(), signal.SIGKILL)", {}, died(KILLED)),
    ("os.kill(os.getpid(), signal.SIGSEGV)", {}, died("ended by signal 11 while fitting")),
    ("sys.exit(3)", {}, died("ended with exit code 3 while fitting")),
    ("os.kill(os.getpid(), signal.SIGSTOP)", {}, died("did not answer for 1 s while fitting")),
    (
        "publish(); os.kill(os.getpid(), signal.SIGKILL)",
        {},
        PUBLISHED | {"notices": [f"attempt 1: the job's process {KILLED}", "few labels"]},
    ),
    (
        LINGER,
        {"job_timeout": 1},
        {"attempt": 1, "error": "stopped after 1 s, the time limit of a job (ISOSIM_JOB_TIMEOUT)"},
    ),
]


@pytest.mark.parametrize(("program", "settings", "facts"), ENDS)
def test_a_job_ends_as_its_process_does(
    jobs: JobStore, program: str, settings: dict[str, object], facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "STOP" in program:
        monkeypatch.setattr("isosim.worker.supervisor.SILENCE", 1.0)
    job = post(jobs)
    busy: list[bool] = []
    one = worker(jobs, program, **settings)
    one.on_busy = busy.append
    one.serve(burst=True)
    end = jobs.read(job.id)
    assert {name: getattr(end, name) for name in facts} == facts
    assert (end.report is not None) is (end.version is not None)
    assert busy == [True, False] * (len(busy) // 2)
    assert list(DomainStore(jobs.blobs).read("a").versions) == [1] * (end.status is Status.SUCCEEDED)
    assert not [*jobs.blobs.list("open/"), *jobs.blobs.list("input/")]


@pytest.mark.parametrize("end", ["say(end={'error': 'none'})", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_match_that_fails_keeps_nothing_of_its_result(jobs: JobStore, end: str) -> None:
    job = post(jobs, match=MatchInput("posted", (1,), ((),)))
    part = Path(jobs.blobs.address, place_of(job), "lines")
    write = f"import pathlib; part = pathlib.Path({str(part)!r}); part.parent.mkdir(parents=True, exist_ok=True)"
    worker(jobs, f"{write}; part.touch(); assert part.exists(); {end}").serve(burst=True)
    assert jobs.read(job.id).status is Status.FAILED
    assert jobs.read(job.id).error in ("none", died(KILLED)["error"])
    assert not [*jobs.blobs.list("matches/")]


@contextmanager
def serving(one: Worker) -> Iterator[Worker]:
    """Runs a worker until the end of the context."""
    thread = threading.Thread(target=one.serve)
    thread.start()
    try:
        yield one
    finally:
        one.stop()
        one.stop()  # not after its drain time
        thread.join(60)
    assert not thread.is_alive()


def all_gone(pids: Path) -> bool:
    """Whether the processes that have noted their ids have ended."""
    stats = [Path(f"/proc/{pid}/stat") for pid in pids.read_text().split()]
    return all(not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z" for stat in stats)


def test_a_child_takes_the_next_job_and_is_gone_when_none_comes(
    jobs: JobStore, monkeypatch: pytest.MonkeyPatch, pids: Path
) -> None:
    monkeypatch.setattr("isosim.worker.supervisor.WARM", 1.0)
    posted = [post(jobs, text).id for text in ("first", "second")]
    with serving(worker(jobs, (NOTE + SUCCEED + "\njob = json.loads(lines.readline())['job']\n") * 3)):
        for count in (2, 3):
            wait_until(lambda: all(jobs.read(job).status is Status.SUCCEEDED for job in posted), 60)
            wait_until(lambda: all_gone(pids), 60)
            started = pids.read_text().split()
            assert (len(started), len(set(started))) == (count, count - 1)
            posted.append(post(jobs, f"after {count}").id)


@pytest.mark.parametrize("how", ["cancelled", "taken for dead"])
def test_an_attempt_that_is_over_is_stopped_with_all_its_processes(jobs: JobStore, pids: Path, how: str) -> None:
    job, clock = post(jobs), Clock()
    watcher = JobStore(jobs.blobs, clock)
    with serving(worker(jobs, f"os.fork()\n{NOTE}{LINGER}")):
        wait_until(lambda: len(pids.read_text().split()) == 2, 60)
        end = jobs.cancel(job.id) if how == "cancelled" else None
        while end is None:  # the worker beats meanwhile, so another takes the job by a clock that jumps
            clock.now += 1e6
            taken = watcher.claim("other")
            end = None if taken is None else taken.job
        wait_until(lambda: all_gone(pids), 60)
    assert jobs.read(job.id) == end


@pytest.mark.parametrize(
    ("program", "drain", "status", "spared", "notices"),
    [
        (LINGER, 1, Status.QUEUED, 1, ["attempt 1: its worker was stopped while fitting"]),
        ("time.sleep(1);" + SUCCEED, 60, Status.SUCCEEDED, 0, ["few labels"]),
        ("say(end={'storage': 'full'})", 60, Status.QUEUED, 0, ["attempt 1: storage failed (full)"]),
    ],
)
def test_a_worker_that_is_stopped_gives_its_job_back_unless_it_ends_in_the_drain_time(
    jobs: JobStore, program: str, drain: int, status: Status, spared: int, notices: list[str]
) -> None:
    job = post(jobs)
    with serving(worker(jobs, program, drain_seconds=drain)) as one:
        wait_until(lambda: (now := jobs.read(job.id)).stage == "fitting" or now.notices, 60)
        one.stop()
        now = wait_until(lambda: (now := jobs.read(job.id)).worker is None and now, 60)
    assert (now.status, now.worker, now.spared, now.notices) == (status, None, spared, notices)


def test_a_store_that_fails_while_a_job_runs_does_not_stop_it_and_a_worker_without_jobs_waits(
    jobs: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isosim.worker.supervisor.SILENCE", 600.0)  # there is no other attempt
    wait = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.1)\n"
    with serving(worker(jobs, wait + SUCCEED)) as one:
        wait_until(lambda: one._next_look, 60)
        job = post(jobs)
        wait_until(lambda: jobs.read(job.id).stage == "fitting", 60)
        (tmp_path / "jobs").rename(tmp_path / "away")
        (tmp_path / "jobs").write_text("not a folder")
        wait_until(lambda: one._failing, 60)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "asked").exists, 60)  # whether it may publish, which cannot be recorded either
        one._failing = False
        wait_until(lambda: one._failing, 60)
        (tmp_path / "jobs").unlink()
        (tmp_path / "away").rename(tmp_path / "jobs")
        wait_until(lambda: jobs.read(job.id).status is Status.SUCCEEDED, 60)


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


def test_a_hint_wakes_a_waiting_worker_and_a_lost_redis_only_its_clock(redis_server: RedisServer) -> None:
    hints = RedisHints(redis_server.url)
    assert hints.wait(60.0)  # it has subscribed, and there may have been hints before
    assert not hints.wait(0.2)
    both = Redis.from_url(redis_server.url).pipeline()
    for _ in range(2):
        both.publish(CHANNEL, b"")
    threading.Timer(0.3, both.execute).start()
    assert hints.wait(60.0)
    assert not hints.wait(0.2)  # both were heard
    redis_server.kill()
    began = time.monotonic()
    assert not hints.wait(0.3)
    assert not hints.wait(0.3)
    assert time.monotonic() - began > 0.3


@given(st.floats(0, 30), st.lists(st.floats(0, 80), max_size=4))
def test_in_a_bucket_another_worker_takes_a_job_within_45_s_of_its_last_heartbeat(
    last: float, hints: list[float]
) -> None:
    """Looks after a hint come in addition to the others, and delay none."""
    clock, blobs = Clock(), in_memory()
    beats = [last - supervisor.DISTANT_HEARTBEAT * number for number in range(4)]
    with patch.object(supervisor, "time", SimpleNamespace(monotonic=clock)):
        jobs = JobStore(blobs, clock)
        post(jobs)
        attempt, other = jobs.claim("dies"), Worker(Settings(), jobs, DomainStore(blobs), None)
        assert attempt is not None
        while other._claim() is None:
            events = [other._until_next_look(), *(at - clock.now for at in (*beats, *hints) if at > clock.now)]
            clock.now += min(events)
            if clock.now in beats:
                attempt.beat("fitting", 0.5)
        assert clock.now - last <= 45


@pytest.mark.parametrize("whose", ["its own", "a file's link", "a folder's link", "another user's"])
def test_a_pulse_shows_how_long_a_worker_is_silent_follows_no_link_and_uses_no_folder_of_another_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim, here, mine = tmp_path / "victim", pulses(), str(os.getpid())
    victim.mkdir()
    (victim / mine).write_text("0.0")
    if whose == "a folder's link":
        here.symlink_to(victim)
    elif whose == "a file's link":
        here.mkdir()
        (here / mine).symlink_to(victim / mine)
    elif whose == "another user's":
        victim.rename(here)
        assert silences().keys() == {os.getpid()}
        monkeypatch.setattr("isosim.jobs.pulse.pulses", lambda: here)
        monkeypatch.setattr("os.getuid", lambda: os.stat(here).st_uid + 1)  # noqa: PTH116
    pulse, began = Pulse(), time.monotonic()
    pulse()
    time.sleep(0.2)
    found = silences()
    if whose == "its own":
        assert 0.2 <= found.pop(os.getpid()) <= time.monotonic() - began
        pulse.close()
        assert not here.exists()
    else:
        assert (here / mine).read_text() == "0.0"
    assert found == silences() == {}


def test_no_job_begins_while_the_volume_is_full(jobs: JobStore) -> None:
    job, runner = post(jobs, "a"), worker(jobs, SUCCEED)
    with patch.object(shutil, "disk_usage", return_value=SimpleNamespace(free=1 << 20)):
        runner.serve(burst=True)
    assert (jobs.read(job.id).status, jobs.read(job.id).attempt) == (Status.QUEUED, 0)
    runner.serve(burst=True)
    assert (jobs.read(job.id).status, jobs.read(job.id).attempt) == (Status.SUCCEEDED, 1)
