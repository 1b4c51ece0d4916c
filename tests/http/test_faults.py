"""What happens when a part is killed, corrupted or away."""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Process, RedisServer, Serve, Server, wait_until
from tests.http.test_calibrate import accepts_jobs, score
from tests.text import sentences

LONG = [f"{text} {n}" for n in range(30) for text in sentences(500)]  # some seconds of fitting


class Load:
    """Callers that go on scoring new and known texts until they are told to stop; every answer is kept."""

    def __init__(self, server: Server, domain: str = "default", pause: float = 0.01) -> None:
        self.server, self.domain, self.pause = server, domain, pause
        self.statuses: list[int] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(4)]

    def _call(self, number: int) -> None:
        with httpx.Client(base_url=self.server.url, timeout=30) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                pair = [f"caller {number} repairs {turn}", "the garden gate"]
                answer = client.post("/similarity", json={"pairs": [pair, *[sentences(2)]], "domain": self.domain})
                self.statuses.append(answer.status_code)
                time.sleep(self.pause)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, more: int) -> None:
        target = len(self.statuses) + more
        wait_until(lambda: len(self.statuses) >= target)


def metric(server: Server, name: str) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)))


def test_redis_killed_and_started_under_load_fails_no_request(
    serve: Serve, store: Path, redis_server: RedisServer
) -> None:
    server = serve(model_store=store, encoder="tiny", redis_url=redis_server.url, memory_cache_bytes=0)
    with Load(server) as load:
        load.answered(50)
        redis_server.kill()
        load.answered(100)
        redis_server.start()
        load.answered(50)
        hits = metric(server, 'isosim_cache_lookups_total{cache="redis",result="hit"}')
        wait_until(lambda: metric(server, 'isosim_cache_lookups_total{cache="redis",result="hit"}') > hits)
    assert set(load.statuses) == {200}
    assert metric(server, 'isosim_cache_lookups_total{cache="redis",result="error"}') > 0


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_score_from_redis_is_the_computed_one_bit_for_bit(
    serve: Serve, store: Path, redis_server: RedisServer, precision: str
) -> None:
    settings = {"model_store": store, "encoder": "tiny", "redis_url": redis_server.url, "cache_precision": precision}
    first, second = serve(**settings), serve(**settings)
    body = {"pairs": [sentences(2), sentences(4)[2:]]}
    computed = first.client.post("/similarity", json=body)
    assert int(computed.headers["x-compute-tokens"]) > 0
    shared = wait_until(
        lambda: r if (r := second.client.post("/similarity", json=body)).headers["x-compute-tokens"] == "0" else None
    )
    assert shared.content == computed.content
    assert metric(second, 'isosim_cache_lookups_total{cache="redis",result="hit"}') > 0


def running_job(server: Server, domain: str) -> str:
    body = {"domain": domain, "texts": LONG, "method": "flow"}
    job: str = server.client.post("/calibrate", json=body).json()["job"]
    wait_until(lambda: server.client.get(f"/calibrate/{job}").json()["stage"] in ("embedding", "fitting"))
    return job


def child_of(process: Process, words: str) -> int:
    """The process id of a descendant whose command line holds the words."""

    def find() -> int | None:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if words in command and parent == process.popen.pid:
                return int(entry.name)
        return None

    found: int = wait_until(find)
    return found


def test_a_killed_child_leaves_the_champion_and_can_be_retried(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    assert server.calibrate("kept", sentences(300))["promoted"]
    before = score(server, "kept").content
    job = running_job(server, "kept")
    os.kill(child_of(server, "service.worker"), signal.SIGKILL)
    state = server.wait_for(job)
    assert state["status"] == "interrupted"
    assert "retry" in state["error"]
    assert score(server, "kept").content == before
    assert server.client.post(f"/calibrate/{job}/retry").status_code == 202
    done = server.wait_for(job)
    assert (done["status"], done["attempt"], done["version"]) == ("succeeded", 2, 2)
    assert server.client.post(f"/calibrate/{job}/retry").status_code == 409


def test_a_killed_queue_child_is_run_again_by_the_queue(
    serve: Serve, store: Path, redis_server: RedisServer, worker: Callable[..., Process]
) -> None:
    process = worker(model_store=store, redis_url=redis_server.url)
    server = serve(model_store=store, encoder="tiny", redis_url=redis_server.url)
    wait_until(lambda: accepts_jobs(server))
    job = running_job(server, "queued")
    os.kill(child_of(process, "worker"), signal.SIGKILL)
    done: dict[str, Any] = wait_until(
        lambda: s if (s := server.client.get(f"/calibrate/{job}").json())["status"] == "succeeded" else None, 120
    )
    assert (done["attempt"], done["version"], done["promoted"]) == (2, 1, True)


def test_a_server_killed_in_mid_job_says_so_when_it_is_back(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    job = running_job(server, "torn")
    server.kill()
    back = serve(model_store=store, encoder="tiny")
    state = wait_until(lambda: back.client.get(f"/calibrate/{job}").json())
    assert state["status"] == "interrupted"
    assert back.client.get("/domains/torn").status_code == 404
    assert back.client.post(f"/calibrate/{job}/retry").status_code == 202
    assert back.wait_for(job)["status"] == "succeeded"


def test_a_corrupt_version_is_refused_by_name_and_the_old_one_serves_on(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("metal", sentences(600), method="whitening")
    server.calibrate("metal", sentences(600), method="sn", promote="never")
    before = score(server, "metal").content
    weights = store / "domains" / "metal" / "2" / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused = server.client.put("/domains/metal/champion", json={"version": 2})
    assert (refused.status_code, refused.json()["error_type"]) == (503, "Unavailable")
    assert "weights.safetensors" in refused.json()["error"]
    # Another process promotes it all the same: the watcher refuses it too.
    from service.adapters.domain_store import DomainStore

    domains = DomainStore(store)
    digest = domains.manifest("metal", 2)["encoder"]["digest"]
    domains.promote("metal", digest, 2, expected=domains.aliases("metal", digest))
    wait_until(lambda: metric(server, "isosim_calibration_load_failures_total") == 1)
    assert score(server, "metal").content == before
    assert "weights.safetensors" in server.log.read_text()


def test_a_swap_under_load_fails_no_request(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    server.calibrate("busy", sentences(600), method="whitening")
    with Load(server, "busy") as load:
        load.answered(20)
        assert server.calibrate("busy", sentences(700), method="sn", promote="always")["promoted"]
        wait_until(lambda: score(server, "busy").json()["version"] == 2, seconds=5)
        load.answered(20)
    assert set(load.statuses) == {200}


def test_a_caller_who_hangs_up_is_noticed_and_nothing_more_is_computed_for_it(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", memory_cache_bytes=0, max_batch_texts=1)
    pairs = [[f"{number} {text}", f"{text} {number}"] for number, text in enumerate(sentences(500))]
    body = json.dumps({"pairs": pairs}).encode()
    head = (
        f"POST /similarity HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: "isosim_queued_texts 0.0" not in server.client.get("/metrics").text, every=0.001)
    left = 'isosim_request_duration_seconds_count{route="/similarity",status="499"} 1.0'
    wait_until(lambda: left in server.client.get("/metrics").text)
    text = server.client.get("/metrics").text
    computed = re.search(r"^isosim_batch_texts_sum (\S+)", text, re.M)
    assert computed is not None
    assert float(computed[1]) < 1000
    assert server.client.post("/similarity", json={"pairs": [["a", "b"]]}).status_code == 200
