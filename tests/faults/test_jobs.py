"""Calibrations whose processes are killed or hang go on elsewhere: none is lost, none makes two versions."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isosim.jobs.pulse import silences
from tests.encoders import copy_encoders
from tests.faults.jobs import (
    LONG,
    TEXTS,
    at_work,
    becomes,
    held_job,
    holds,
    jobs_of,
    kill,
    post,
    running,
    running_job,
    state,
    whole_versions,
)
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.processes import Process, Serve, Server, score, start, wait_until

ELSEWHERE = 45.0  # s in which a job goes on after its worker has died or hangs
STAGES = ("embedding", "fitting")
StartWorker = Callable[..., Process]


@pytest.fixture(params=["folder", "bucket"])
def root(request: pytest.FixtureRequest, store: Path, tiny_store: Path) -> Path:
    if request.param == "folder":
        return store
    server: Objects = request.getfixturevalue("objects")
    bucket = server.bucket()
    copy_encoders(tiny_store, bucket)
    return bucket


def address(root: Path) -> str:
    return root.as_posix().replace("s3:/", "s3://", 1)


@pytest.fixture
def site(root: Path, serve: Serve, worker: StartWorker) -> Iterator[tuple[Server, StartWorker]]:
    """A server without a worker of its own, and a function that starts workers. Redis is not used."""
    given = {"model_store": address(root), "encoder": "tiny"}
    yield serve(**given, local_worker=False), lambda **more: worker(**given, **more)


def kill_if_there(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        kill(pid)


FAULTS: dict[str, tuple[Callable[[Process, int], None], str]] = {
    "the job's process is killed": (
        lambda worker, child: kill(child),
        r"was killed while \w+ing, perhaps because",
    ),
    "the worker hangs": (lambda worker, child: os.kill(worker.popen.pid, signal.SIGSTOP), "fell silent"),
}


@pytest.mark.parametrize(
    ("root", "fault"), [("bucket", "the job's process is killed"), ("folder", "the worker hangs")], indirect=["root"]
)
def test_a_job_goes_on_elsewhere_and_its_record_says_why(
    site: tuple[Server, StartWorker], root: Path, fault: str
) -> None:
    """The other ways to die, in tests/jobs; a worker that is killed, below."""
    (server, begin), (happens, why) = site, FAULTS[fault]
    first = begin()
    job = running_job(server, "torn")
    child = at_work(first)
    second = begin()
    wait_until(lambda: "worker starting" in second.log.read_text())
    first.may_end = True
    happens(first, child)
    wait_until(lambda: (now := state(server, job))["attempt"] == 2 and now["status"] == "running", ELSEWHERE)
    assert re.search(why, state(server, job)["notices"][0])  # the job goes on while the second worker starts
    if fault == "the worker hangs":
        os.kill(first.popen.pid, signal.SIGCONT)
        wait_until(lambda: "has been replaced by another" in first.log.read_text())
    done = becomes(server, job, "succeeded", 300)
    assert (done["attempt"], done["version"]) == (2, 1)
    assert re.search(f'"attempt":2,"notices":.*{why}', first.log.read_text() + second.log.read_text())
    assert whole_versions(root, "torn") == [1]
    assert not holds(root, LONG[7])


def test_a_job_killed_in_mid_work_leaves_the_champion_and_goes_on(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    before, versions, killed = score(server, "news").content, [1, 2], 0
    for stage in STAGES:
        job = post(server, "news", LONG[:6000], method="flow", promote="never")
        child = at_work(server)
        wait_until(lambda: state(server, job)["stage"] in (stage, "succeeded"), 120, every=0.002)  # noqa: B023
        kill_if_there(child)
        done = becomes(server, job, "succeeded")
        versions.append(done["version"])
        killed += "was killed while" in "".join(done["notices"])
        assert score(server, "news").content == before
        assert versions == whole_versions(news, "news")
    assert killed  # a stage may be over before it is seen
    assert not holds(news, LONG[7])


def test_a_job_killed_while_it_publishes_makes_one_version(serve: Serve, store: Path) -> None:
    server, met = serve(model_store=store, encoder="tiny"), set()
    for number in range(5):
        domain = f"torn-{number}"
        before = whole_versions(store, domain)
        job = post(server, domain, TEXTS, promote="always", seed=number)
        child = at_work(server)
        wait_until(lambda: (jobs_of(store).read(job).status.value) in ("publishing", "succeeded"), 300, every=0.005)  # noqa: B023
        time.sleep(0.008 * number)
        kill_if_there(child)
        done = becomes(server, job, "succeeded")
        assert whole_versions(store, domain) == [*before, done["version"]]
        wait_until(lambda: score(server, domain).json()["version"] == done["version"], 10)  # noqa: B023
        met.add("again" if done["attempt"] > 1 else "found" if len(done["notices"]) > 0 else "ended")
        if {"again", "found"} <= met:
            break
    assert {"again", "found"} & met
    assert not holds(store, TEXTS[7])


def test_a_server_killed_in_mid_job_goes_on_with_it_when_it_is_back(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    held = held_job(server, server, "torn")
    waiting = post(server, "waiting", TEXTS)
    server.kill()
    held.let_go()
    wait_until(lambda: not os.path.exists(f"/proc/{held.child}/exe"))  # noqa: PTH110 - it does not outlive its worker
    back = serve(model_store=store, encoder="tiny")
    assert back.client.get("/domains/torn").status_code == 404
    assert becomes(back, waiting, "succeeded")["attempt"] == 1
    assert becomes(back, held.job, "succeeded")["attempt"] == 2
    assert whole_versions(store, "torn") == whole_versions(store, "waiting") == [1]


def test_the_servers_own_worker_is_started_again_when_it_dies(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    first = running(server, "isosim.worker")
    held = held_job(server, server, "torn")
    kill(first)
    held.let_go()
    assert becomes(server, held.job, "succeeded", 120)["attempt"] == 2
    assert running(server, "isosim.worker") != first


@pytest.mark.parametrize("root", ["bucket"], indirect=True)
def test_two_servers_on_one_store_without_redis_work_together(root: Path, serve: Serve) -> None:
    given = {"model_store": address(root), "encoder": "tiny"}
    first, second = serve(**given), serve(**given)
    body, key = {"domain": "letters", "texts": TEXTS, "method": "sn"}, {"idempotency-key": "k"}
    made = [server.client.post("/calibrate", json=body, headers=key).json()["job"] for server in (first, second)]
    assert made[0] == made[1]
    other = second.client.post("/calibrate", json={**body, "seed": 1}, headers=key)
    assert (other.status_code, "Idempotency-Key was used" in other.text) == (409, True)
    with second.client.stream("GET", f"/calibrate/{made[0]}/events") as response:  # whichever of them runs it
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["status"] == "succeeded"
    assert state(first, made[0]) == state(second, made[0])
    for server in (first, second):
        wait_until(lambda: server.client.get("/domains/letters").status_code == 200, seconds=2)  # noqa: B023
        assert score(server, "letters").json()["version"] == 1
    long = post(first, "gone", LONG, method="flow")
    becomes(first, long, "running")
    assert second.client.delete(f"/calibrate/{long}").json()["status"] == "cancelled"
    assert second.client.delete(f"/calibrate/{long}").status_code == 409
    after = post(first, "after", TEXTS)
    assert becomes(second, after, "succeeded")["version"] == 1
    assert whole_versions(root, "gone") == []
    listed = [[one["job"] for one in server.client.get("/calibrate").json()["jobs"]] for server in (first, second)]
    assert listed == [[after, long, made[0]]] * 2


@pytest.mark.parametrize("root", ["bucket"], indirect=True)
def test_a_bucket_that_hangs_while_a_job_runs_loses_nothing(
    objects: Objects,  # noqa: F811
    site: tuple[Server, StartWorker],
    root: Path,
) -> None:
    server, begin = site
    runner = begin()
    job = running_job(server, "patient")
    waiting = post(server, "after", TEXTS)
    objects.hang()
    try:
        # Its heartbeats or its publication, whichever comes first, find the storage away.
        wait_until(lambda: re.search("and the job goes on|storage failed", runner.log.read_text()), 120)
        assert server.client.get("/livez").status_code == 200
        assert server.client.get(f"/calibrate/{job}").status_code == 503
    finally:
        objects.go_on()
    assert becomes(server, job, "succeeded", 300)["version"] == 1
    assert becomes(server, waiting, "succeeded", 300)["version"] == 1
    assert whole_versions(root, "patient") == whole_versions(root, "after") == [1]
    assert not holds(root, TEXTS[7])


@pytest.mark.parametrize("root", ["folder"], indirect=True)
def test_a_job_waits_for_a_worker_and_a_check_finds_one_that_hangs(
    site: tuple[Server, StartWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, begin = site
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = post(server, "waiting", TEXTS)
    assert start(["worker", "--check"], tmp_path / "none.log").wait(60) == 1
    assert "no calibration worker runs on this machine" in (tmp_path / "none.log").read_text()
    one = begin()
    assert becomes(server, job, "succeeded")["attempt"] == 1
    assert start(["worker", "--check"], tmp_path / "one.log").wait(60) == 0
    os.kill(one.popen.pid, signal.SIGSTOP)
    file = next((tmp_path / f"isosim-workers-{os.getuid()}").iterdir())
    file.write_text(f"{time.monotonic() - 200}\n")  # as after 200 s
    assert silences()[one.popen.pid] > 199
    assert start(["worker", "--check"], tmp_path / "hung.log").wait(60) == 1
    assert "has hung for" in (tmp_path / "hung.log").read_text()
