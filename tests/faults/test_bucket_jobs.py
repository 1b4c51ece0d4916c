"""Jobs in object storage, of several API processes and workers that share nothing but the bucket and Redis."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from isosim.store.object_storage import address, opened
from tests.encoders import copy_encoders
from tests.faults.jobs import LONG, TEXTS, at_work, becomes, kill, post, retry, state, whole_versions
from tests.faults.test_queue import hand_over_again
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.processes import Process, RedisServer, Serve, Server, accepts_jobs, wait_until

LARGE = LONG[:6000]


@pytest.fixture
def bucket(objects: Objects, tiny_store: Path) -> Path:  # noqa: F811
    root = objects.bucket()
    copy_encoders(tiny_store, root)
    return root


StartWorker = Callable[[], Process]


@pytest.fixture
def start_worker(bucket: Path, worker: Callable[..., Process], redis_server: RedisServer) -> Iterator[StartWorker]:
    yield lambda: worker(model_store=address(bucket), redis_url=redis_server.url)


@pytest.fixture
def replicas(bucket: Path, serve: Serve, start_worker: StartWorker, redis_server: RedisServer) -> list[Server]:
    """Two servers; and the fixture's worker is not started."""
    return [serve(model_store=address(bucket), encoder="tiny", redis_url=redis_server.url) for _ in range(2)]


def text_is_left(bucket: Path, text: str) -> bool:
    storage = opened(bucket)
    return any(text.encode() in storage.read(entry.key)[0] for entry in storage.list("jobs/"))


def test_text_posted_to_one_replica_is_fitted_by_a_worker_and_served_by_the_other_within_two_seconds(
    bucket: Path, replicas: list[Server], start_worker: StartWorker
) -> None:
    first, second = replicas
    start_worker()
    wait_until(lambda: accepts_jobs(first))
    job = post(first, "letters", TEXTS)
    done = becomes(second, job, "succeeded")  # each replica knows the other's jobs
    wait_until(lambda: second.client.get("/domains/letters").status_code == 200, seconds=2)
    pairs = {"pairs": [TEXTS[:2]], "domain": "letters"}
    assert second.client.post("/similarity", json=pairs).json()["version"] == done["version"] == 1
    assert not text_is_left(bucket, TEXTS[7])
    assert [one["job"] for one in first.client.get("/calibrate").json()["jobs"]] == [job]


def test_a_job_whose_worker_stalls_goes_on_at_another_and_the_stalled_one_cannot_publish(
    bucket: Path, replicas: list[Server], start_worker: StartWorker, redis_server: RedisServer
) -> None:
    server = replicas[0]
    first = start_worker()
    wait_until(lambda: accepts_jobs(server))
    job = post(server, "torn", LARGE, method="flow")
    wait_until(lambda: state(server, job)["stage"] == "fitting", 120)
    stalled = at_work(first, job)
    os.kill(stalled, signal.SIGSTOP)
    start_worker()
    hand_over_again(redis_server, f"{job}-0")
    assert becomes(server, job, "succeeded", 300)["attempt"] == 2
    os.kill(stalled, signal.SIGCONT)
    wait_until(lambda: "not run: " in first.log.read_text(), 120)  # it has noticed, and has ended
    assert whole_versions(bucket, "torn") == [1]
    assert state(server, job)["version"] == 1
    assert not text_is_left(bucket, LARGE[7])


def test_a_job_whose_worker_is_killed_is_interrupted_with_its_text_and_can_be_retried_on_another(
    bucket: Path, replicas: list[Server], start_worker: StartWorker
) -> None:
    server, other = replicas
    first = start_worker()
    wait_until(lambda: accepts_jobs(server))
    job = post(server, "torn", LARGE, method="flow")
    wait_until(lambda: state(server, job)["stage"] == "fitting", 120)
    child = at_work(first, job)
    first.kill()
    kill(child)
    start_worker()
    assert "retry" in becomes(other, job, "interrupted", 60)["error"]
    assert text_is_left(bucket, LARGE[7])
    retry(other, job)
    assert becomes(server, job, "succeeded", 300)["attempt"] == 2
    assert whole_versions(bucket, "torn") == [1]


def test_a_redis_that_comes_back_empty_loses_no_job(
    replicas: list[Server], start_worker: StartWorker, redis_server: RedisServer
) -> None:
    server = replicas[1]
    worker = start_worker()
    wait_until(lambda: accepts_jobs(server))
    os.kill(worker.popen.pid, signal.SIGSTOP)
    job = post(server, "kept", TEXTS)
    with Redis.from_url(redis_server.url) as redis:
        redis.flushall()
    os.kill(worker.popen.pid, signal.SIGCONT)
    assert becomes(server, job, "succeeded")["attempt"] == 1


def test_a_bucket_that_hangs_while_a_job_runs_loses_nothing_and_nobody_has_to_retry(
    objects: Objects,  # noqa: F811
    bucket: Path,
    replicas: list[Server],
    start_worker: StartWorker,
) -> None:
    server = replicas[0]
    start_worker()
    wait_until(lambda: accepts_jobs(server))
    job = post(server, "patient", LARGE, method="flow")
    waiting = post(server, "after", TEXTS)
    wait_until(lambda: state(server, job)["stage"] == "fitting", 120)
    objects.hang()
    try:
        time.sleep(30)  # the fit ends meanwhile, and what it then asks of the bucket is given up
        assert server.client.get("/livez").status_code == 200
        assert server.client.get(f"/calibrate/{job}").status_code == 503
    finally:
        objects.go_on()
    assert becomes(server, job, "succeeded", 300)["version"] == 1
    assert becomes(server, waiting, "succeeded", 300)["version"] == 1
    assert whole_versions(bucket, "patient") == whole_versions(bucket, "after") == [1]
    assert not text_is_left(bucket, TEXTS[7])
