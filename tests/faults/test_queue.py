"""Calibrations behind Redis while Redis, the way to it or a worker goes away: none is lost, none runs twice."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.conftest import Process, RedisServer, wait_until
from tests.faults.conftest import StartQueue
from tests.faults.jobs import becomes, post, running_job, state, whole_versions
from tests.faults.line import Line
from tests.http.test_calibrate import accepts_jobs
from tests.text import sentences


@pytest.mark.parametrize("fault", ["Redis comes back empty", "the worker's line is cut"])
def test_calibrations_that_run_and_wait_outlive_a_redis_that_goes(
    queue: StartQueue, store: Path, redis_server: RedisServer, line: Line, fault: str
) -> None:
    server, worker = queue()
    running = running_job(server, "running")
    waiting = [post(server, "waiting", sentences(250), promote="always") for _ in range(2)]
    with line.cut() if "cut" in fault else nullcontext():
        if "empty" in fault:
            redis_server.kill()
        time.sleep(3)  # a while in which the worker meets it
        if "empty" in fault:
            redis_server.start()
    assert becomes(server, running, "succeeded")["attempt"] == 1
    for job in waiting:
        assert becomes(server, job, "succeeded")["attempt"] == 1
    assert whole_versions(store, "running") == [1]
    assert whole_versions(store, "waiting") == [1, 2]
    assert worker.popen.poll() is None
    assert becomes(server, post(server, "later", sentences(250)), "succeeded")["version"] == 1


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(
    queue: StartQueue, redis_server: RedisServer, worker: Callable[..., Process], line: Line, store: Path
) -> None:
    redis_server.kill()
    waiting = worker(model_store=store, redis_url=redis_server.url)
    wait_until(lambda: "cannot be reached" in waiting.log.read_text())
    redis_server.start()
    with line.cut():  # the fixture's own worker stays out of it; the server finds the one that waited
        server, _ = queue()
        assert accepts_jobs(server)
    assert waiting.popen.poll() is None


def test_a_worker_that_is_killed_with_its_job_is_noticed_and_the_job_can_be_retried_on_another(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, first = queue()
    job = running_job(server, "torn")
    first.kill()
    assert state(server, job)["status"] == "running"  # nobody knows yet
    worker(model_store=store, redis_url=redis_server.url)
    found = becomes(server, job, "interrupted", 60)
    assert "retry" in found["error"]
    assert server.client.get("/domains/torn").status_code == 404
    assert server.client.post(f"/calibrate/{job}/retry").status_code == 202
    assert becomes(server, job, "succeeded")["attempt"] == 2
    assert whole_versions(store, "torn") == [1]


def test_two_workers_that_promote_at_once_leave_whole_versions_and_a_clear_record(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, _ = queue()
    worker(model_store=store, redis_url=redis_server.url)
    jobs = [post(server, "both", sentences(250), seed=n, promote="always") for n in range(4)]
    ended = [becomes(server, job, "succeeded") for job in jobs]
    assert sorted(found["version"] for found in ended) == whole_versions(store, "both") == [1, 2, 3, 4]
    domain = server.client.get("/domains/both").json()
    promoted = {found["version"] for found in ended if found["promoted"]}
    assert {domain["champion"], domain["previous"]} <= promoted
    assert all(found["report"]["promotion"] for found in ended)
