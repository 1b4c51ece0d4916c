"""Workers and servers are killed at every moment of a calibration: no half version, nothing lost, no text left."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import StartQueue
from tests.faults.jobs import (
    TEXTS,
    at_work,
    becomes,
    ended,
    held_job,
    holds,
    kill,
    post,
    record,
    retry,
    state,
    whole_versions,
)
from tests.processes import Process, Serve, Server, score, wait_until
from tests.stores import record_of
from tests.text import sentences

STAGES = ("starting", "embedding", "choosing", "fitting", "measuring")  # as a job reports them


def killed_when(process: Process, job: str, condition: Callable[[], object]) -> None:
    """Kills the child that runs the job, the moment the condition holds."""
    child = at_work(process, job)
    wait_until(condition, 60, every=0.0005)
    kill(child)
    wait_until(lambda: not os.path.exists(f"/proc/{child}/exe"))  # noqa: PTH110 - a zombie's link leads nowhere


def killed_at_every_stage(server: Server, process: Process, store: Path, lives: int) -> None:
    """`lives`: how often whoever runs the job begins it by itself before somebody has to ask."""
    before = score(server, "news").content
    job = post(server, "news", TEXTS, promote="always")
    died, left = 0, list(STAGES)
    while left:
        stage = left[0]
        killed_when(process, job, lambda: (r := record(store, job))["stage"] == stage and r["attempt"] == died + 1)  # noqa: B023
        died += 1
        assert died < 3 * len(STAGES)
        if record(store, job)["stage"] == stage:  # and not already the next one
            left.pop(0)
        assert score(server, "news").content == before
        assert whole_versions(store, "news") == [1, 2]
        if died % lives == 0:
            assert "was killed while" in becomes(server, job, "interrupted", 15)["error"]
            assert holds(store, TEXTS[7])
            retry(server, job)
    done = becomes(server, job, "succeeded")
    assert (done["attempt"], done["version"], done["promoted"]) == (died + 1, 3, True)
    assert whole_versions(store, "news") == [1, 2, 3]
    assert not holds(store, TEXTS[7])
    assert server.client.post(f"/calibrate/{job}/retry").status_code == 409


def test_a_local_child_killed_at_any_stage_leaves_the_champion_and_can_be_retried(serve: Serve, news: Path) -> None:
    server = serve(model_store=news, encoder="tiny")
    killed_at_every_stage(server, server, news, lives=1)


def test_a_workers_child_killed_at_any_stage_is_run_again_once_and_can_be_retried_after(
    queue: StartQueue, news: Path
) -> None:
    server, worker = queue(news)
    killed_at_every_stage(server, worker, news, lives=2)


def test_a_child_killed_while_it_publishes_leaves_one_whole_version_after_a_retry(serve: Serve, store: Path) -> None:
    """Also where the version was there and promoted, and only the job's record did not know."""
    server = serve(model_store=store, encoder="tiny")
    moments: dict[str, Callable[[str, str], bool]] = {
        "decided": lambda domain, job: (store / "jobs" / job / "decided").exists(),
        "uploading": lambda domain, job: (store / "versions" / domain).exists(),
        "published": lambda domain, job: record_of(store, domain).exists(),
    }
    for name, moment in moments.items():
        for attempt in range(5):
            domain = f"{name}-{attempt}"
            job = post(server, domain, TEXTS)
            killed_when(server, job, lambda: moment(domain, job))  # noqa: B023 - used up within the round
            if ended(server, job)["status"] == "interrupted":
                break  # and in time
        else:
            pytest.fail(f"never killed when {name}")
        assert whole_versions(store, domain) in ([], [1])
        if whole_versions(store, domain):  # and then no cancel takes it back
            assert server.client.delete(f"/calibrate/{job}").status_code == 409
        retry(server, job)
        done = becomes(server, job, "succeeded")
        assert done["promoted"]
        assert whole_versions(store, domain) == [done["version"]]
        assert score(server, domain).json()["version"] == done["version"]
        assert not holds(store, TEXTS[7])


def test_a_server_killed_in_mid_job_says_so_when_it_is_back_and_runs_what_waited(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    held = held_job(server, server, store, "torn")
    waiting = post(server, "waiting", TEXTS)
    server.kill()
    held.let_go()  # and finds out that nobody waits for it
    back = serve(model_store=store, encoder="tiny")
    assert state(back, held.job)["status"] == "interrupted"
    assert back.client.get("/domains/torn").status_code == 404
    retry(back, held.job)
    assert becomes(back, waiting, "succeeded")["attempt"] == 1
    assert becomes(back, held.job, "succeeded")["attempt"] == 2
    assert whole_versions(store, "torn") == whole_versions(store, "waiting") == [1]


def test_a_server_killed_during_an_upload_has_no_job_and_its_text_is_swept_away(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    head = (
        "POST /calibrate?domain=half HTTP/1.1\r\nhost: x\r\n"
        "content-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode())
        chunk = "\n".join(f"secret {text}" for text in sentences(2000)).encode()
        for _ in range(5):
            connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        wait_until(lambda: holds(store, "secret"))
        server.kill()
    for left in (store / "jobs").glob(".spool-*"):
        a_while_ago = time.time() - 3600
        os.utime(left, (a_while_ago, a_while_ago))
    back = serve(model_store=store, encoder="tiny")
    assert back.client.get("/calibrate").json()["jobs"] == []
    assert back.client.get("/domains/half").status_code == 404
    assert not holds(store, "secret")
