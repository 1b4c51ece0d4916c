"""RQ's worker: what becomes of a job whose process was killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, Retry, get_current_job
from rq.job import Job as RqJob
from rq.job import JobStatus

from isosim.jobs.queue import KILLED, QUEUE, RETRIES, QueueWorker
from tests.processes import RedisServer

LIMIT = 1  # s
WORK = """
import sys
from redis import Redis
from isosim.jobs.queue import work
work(Redis.from_url(sys.argv[1]), lambda *told: print("lost:", *told), "ERROR", burst=True)
"""


def catch_everything(job_id: str, *command: str) -> None:
    """A job that goes on whatever is raised in it, as libraries do that try one import and then another. First sends
    Redis a command."""
    if command:
        running = get_current_job()
        assert running is not None
        with contextlib.suppress(RedisError):
            running.connection.execute_command(*command)
    until = time.monotonic() + 10 * LIMIT
    while time.monotonic() < until:
        with contextlib.suppress(BaseException):
            time.sleep(0.1)


def told(redis_server: RedisServer, *command: str) -> tuple[list[str], str]:
    """Runs such a job in a worker. Returns what the worker told `on_lost`, and its log."""
    with Redis.from_url(redis_server.url) as redis:
        Queue(QUEUE, connection=redis).enqueue(
            f"{__name__}.{catch_everything.__name__}", "abc", *command,
            job_id="abc-0", job_timeout=LIMIT, retry=Retry(max=RETRIES),
        )  # fmt: skip
    arguments = [sys.executable, "-c", WORK, redis_server.url]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.splitlines(), done.stderr


def test_a_job_that_catches_every_exception_ends_at_its_limit_and_is_not_retried(redis_server: RedisServer) -> None:
    found, log = told(redis_server)
    assert found == [f"lost: abc 1 {LIMIT}"], log
    with Redis.from_url(redis_server.url) as redis:
        assert RqJob.fetch("abc-0", connection=redis).get_status() is JobStatus.FAILED


@pytest.mark.parametrize("command", [("FLUSHALL",), ("SHUTDOWN", "NOSAVE")], ids=["has lost the job", "is away"])
def test_the_limit_of_a_job_is_recorded_when_redis(redis_server: RedisServer, command: tuple[str, ...]) -> None:
    found, log = told(redis_server, *command)
    assert found == [f"lost: abc 1 {LIMIT}"], log


def test_a_worker_without_a_running_job_ends_no_process(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job can be cancelled between the end of its process and the next job."""
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    worker = QueueWorker(Redis.from_url(redis_server.url), lambda *_: None)
    worker.kill_horse()
    assert not killed
    worker._horse_pid = os.getpid()
    worker.kill_horse()
    assert killed == [os.getpgrp()]


def killed_by(number: int) -> int:
    """The status that `os.wait` reports for a process that a signal ended."""
    assert os.WIFSIGNALED(number)
    return number


@pytest.mark.parametrize(
    ("status", "retries", "told"),
    [
        (killed_by(signal.SIGALRM), 1, ("abc", 3, 5)),
        (killed_by(signal.SIGALRM), 0, ("abc", 4, 5)),
        (killed_by(signal.SIGKILL), 0, ("abc", 4, None)),
        (killed_by(signal.SIGKILL), 1, None),  # RQ retries it
        (None, 1, None),  # suspended, so that RQ killed it a minute after its limit
    ],
)
def test_a_job_is_lost_at_its_limit_or_when_rq_does_not_retry_it(
    redis_server: RedisServer, status: int | None, retries: int, told: tuple[str, int, int | None] | None
) -> None:
    heard: list[tuple[str, int, int | None]] = []
    worker = QueueWorker(Redis.from_url(redis_server.url), lambda *what: heard.append(what))
    job = SimpleNamespace(id="abc-2", args=["abc"], timeout=5, retries_left=retries, meta={}, save_meta=lambda: None)
    worker.handle_work_horse_killed(job, None, status, None)
    assert heard == ([] if told is None else [told])
    assert (job.retries_left, job.meta.get(KILLED)) == (int(told is None), True if told is None else None)
