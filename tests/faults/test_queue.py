"""Calibrations behind Redis while Redis, the way to it or a worker goes away: none is lost, none runs twice."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from redis import Redis
from rq.registry import StartedJobRegistry

from tests.faults.conftest import StartQueue
from tests.faults.jobs import (
    LONG,
    TEXTS,
    at_work,
    becomes,
    held_job,
    holds,
    kill,
    post,
    record,
    retry,
    state,
    suspend,
    whole_versions,
)
from tests.faults.line import Line
from tests.processes import Process, RedisServer, accepts_jobs, wait_until


@pytest.mark.parametrize("fault", ["Redis comes back empty", "the worker's line is cut"])
def test_calibrations_that_run_and_wait_outlive_a_redis_that_goes(
    queue: StartQueue, store: Path, redis_server: RedisServer, line: Line, fault: str
) -> None:
    server, worker = queue()
    running = held_job(server, worker, store, "running")
    waiting = post(server, "waiting", TEXTS)
    with line.cut() if "cut" in fault else nullcontext():
        if "empty" in fault:
            redis_server.kill()
        time.sleep(12)  # the worker's parent wants to say every 10 s that a job runs
        if "empty" in fault:
            redis_server.start()
    running.let_go()
    for job in (running.job, waiting):
        assert becomes(server, job, "succeeded")["attempt"] == 1
    assert whole_versions(store, "running") == whole_versions(store, "waiting") == [1]
    wait_until(lambda: accepts_jobs(server))  # the worker is known again
    assert worker.popen.poll() is None


def test_a_calibration_that_was_accepted_outlives_its_own_retry_that_a_full_redis_refuses(
    queue: StartQueue, redis_server: RedisServer, store: Path
) -> None:
    server, worker = queue()
    os.kill(worker.popen.pid, signal.SIGSTOP)  # the job waits
    body, key = {"domain": "once", "texts": TEXTS, "method": "sn"}, {"idempotency-key": "k"}
    job = server.client.post("/calibrate", json=body, headers=key).json()["job"]
    with Redis.from_url(redis_server.url) as redis:
        redis.delete(f"rq:job:{job}-0")  # what it had been told, it has lost
        redis.config_set("maxmemory", 1)  # it is read, and takes nothing
        assert server.client.post("/calibrate", json=body, headers=key).status_code == 503
        redis.config_set("maxmemory", 0)
    assert state(server, job)["status"] == "queued"
    again = server.client.post("/calibrate", json=body, headers=key)
    assert (again.status_code, again.json()["job"]) == (202, job)
    os.kill(worker.popen.pid, signal.SIGCONT)
    assert becomes(server, job, "succeeded")["attempt"] == 1
    assert whole_versions(store, "once") == [1]


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(
    queue: StartQueue, redis_server: RedisServer, worker: Callable[..., Process], line: Line, store: Path
) -> None:
    redis_server.kill()
    waiting = worker(model_store=store, redis_url=redis_server.url)
    wait_until(lambda: "Redis cannot be used, trying again: the connection is refused" in waiting.log.read_text())
    redis_server.start()
    with line.cut():  # the fixture's own worker stays out of it; the server finds the one that waited
        server, _ = queue()
        assert accepts_jobs(server)
    assert waiting.popen.poll() is None


def test_a_worker_says_that_a_full_redis_refuses_it_and_goes_on_when_there_is_room(
    redis_server: RedisServer, worker: Callable[..., Process], store: Path
) -> None:
    with Redis.from_url(redis_server.url) as redis:
        redis.config_set("maxmemory", 1)
        refused = worker(model_store=store, redis_url=redis_server.url)
        wait_until(lambda: "Redis cannot be used, trying again" in refused.log.read_text())
        assert "connection is refused" not in refused.log.read_text()
        redis.config_set("maxmemory", 0)
        wait_until(lambda: redis.scard("rq:workers:isosim") == 1)
    assert refused.popen.poll() is None


def test_a_worker_that_is_killed_with_its_job_is_noticed_and_the_job_can_be_retried_on_another(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, first = queue()
    held = held_job(server, first, store, "torn")
    first.kill()
    kill(held.child)
    assert state(server, held.job)["status"] == "running"  # nobody knows yet
    worker(model_store=store, redis_url=redis_server.url)
    found = becomes(server, held.job, "interrupted", 60)
    assert "retry" in found["error"]
    assert server.client.get("/domains/torn").status_code == 404
    retry(server, held.job)
    assert becomes(server, held.job, "succeeded")["attempt"] == 2
    assert whole_versions(store, "torn") == [1]
    assert not holds(store, TEXTS[7])


def hand_over_again(redis_server: RedisServer, rq_id: str) -> None:
    """What the maintenance of any RQ worker does a minute after it last heard of a job's worker."""
    with Redis.from_url(redis_server.url) as redis:
        registry = StartedJobRegistry("isosim", connection=redis)
        heard = {name.decode(): score for name, score in redis.zrange(registry.key, 0, -1, withscores=True)}
        registry.cleanup(next(score for name, score in heard.items() if name.startswith(rq_id)) + 0.001)


def test_a_job_that_was_retried_is_not_taken_from_its_attempt_by_the_queues_own_retry(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, first = queue()
    held = held_job(server, first, store, "torn")
    first.kill()
    kill(held.child)
    second = worker(model_store=store, redis_url=redis_server.url)
    becomes(server, held.job, "interrupted", 60)
    retry(server, held.job)
    wait_until(lambda: (r := record(store, held.job))["attempt"] == 2 and r["stage"] == "embedding", 120, every=0.0005)
    child = at_work(second, held.job)
    suspend(child, store, held.job)  # a moment's rest: it goes on before it could be taken for dead
    third = worker(model_store=store, redis_url=redis_server.url)
    hand_over_again(redis_server, f"{held.job}-0")
    wait_until(lambda: "not run: job" in third.log.read_text(), 120)
    assert record(store, held.job)["attempt"] == 2
    os.kill(child, signal.SIGCONT)
    assert becomes(server, held.job, "succeeded")["attempt"] == 2
    assert whole_versions(store, "torn") == [1]


def test_a_job_whose_worker_the_queue_has_lost_goes_on_where_it_is(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, first = queue()
    workers = [first, worker(model_store=store, redis_url=redis_server.url)]
    wait_until(lambda: "Listening" in workers[1].log.read_text(), 120)
    job = post(server, "far", LONG[:3000], method="flow")
    becomes(server, job, "running")
    hand_over_again(redis_server, f"{job}-0")  # the one that does not run it takes it
    wait_until(lambda: any("not run: job" in one.log.read_text() for one in workers), 120)
    assert becomes(server, job, "succeeded", 600)["attempt"] == 1
    assert whole_versions(store, "far") == [1]


def test_two_workers_that_publish_at_once_leave_whole_versions_and_a_clear_record(
    queue: StartQueue, worker: Callable[..., Process], redis_server: RedisServer, store: Path
) -> None:
    server, first = queue()
    one = held_job(server, first, store, "both", stage="measuring", promote="always")
    second = worker(model_store=store, redis_url=redis_server.url)
    other = held_job(server, second, store, "both", stage="measuring", promote="always")
    for held in (one, other):
        held.let_go()
    ended = [becomes(server, held.job, "succeeded") for held in (one, other)]
    assert sorted(found["version"] for found in ended) == whole_versions(store, "both") == [1, 2]
    assert all(found["promoted"] and found["report"]["promotion"] for found in ended)
    domain = server.client.get("/domains/both").json()
    assert {domain["champion"], domain["previous"]} == {1, 2}
