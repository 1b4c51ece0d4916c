"""A server whose encoder runs on another server: as exported ones answer, and what happens when that server fails."""

import itertools
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest

from isosim.encoders.store import EncoderStore, Endpoint
from isosim.export.remote import PROBES, register
from tests.adapters.encoder.remote_server import RemoteServer
from tests.processes import Process, Serve, Server, free_port, start, wait_until
from tests.text import sentences

TEXTS = sentences(40)


@pytest.fixture
def remote() -> Iterator[RemoteServer]:
    with RemoteServer(dim=16).running() as running:
        yield running


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("far")
    with RemoteServer(dim=16).running() as server:
        register(store, "far", server.url, "m", lambda _: None)
    return store


@pytest.fixture
def far(registered: Path, remote: RemoteServer, tmp_path: Path) -> Path:
    """A store with the encoder `far` at the test's own server."""
    shutil.copytree(registered, tmp_path / "far")
    register(tmp_path / "far", "far", remote.url, "m", lambda _: None)
    remote.requests.clear()
    return tmp_path / "far"


def cosine(remote: RemoteServer, a: str, b: str) -> float:
    """As the registered model gives it."""
    x, y = RemoteServer(dim=remote.dim).vectors([a, b])
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def pairs(count: int) -> list[list[str]]:
    return [list(pair) for pair in itertools.islice(itertools.combinations(TEXTS, 2), count)]


def test_scores_are_those_of_the_model_exported_and_the_cache_spares_the_other_server(
    tiny_store: Path, tiny_server: Server, serve: Serve, tmp_path: Path
) -> None:
    """The remote server is another isosim with the same encoder."""
    register(tmp_path / "far", "far", f"{tiny_server.url}/v1", "isosim:raw", lambda _: None)
    server = serve(model_store=tmp_path / "far", encoder="far")
    assert '"engine":"remote"' in server.log.read_text()
    asked = {"pairs": pairs(60)}
    here = tiny_server.client.post("/similarity", json=asked).json()
    there = server.client.post("/similarity", json=asked)
    assert there.json()["similarity"] == pytest.approx(here["similarity"], abs=1e-5)
    assert there.headers["x-isosim-tokens"] == "estimated"
    before = remote_requests(server)
    again = server.client.post("/similarity", json=asked)
    assert again.json()["similarity"] == there.json()["similarity"]
    assert remote_requests(server) == before
    rows = tiny_server.client.post("/v1/embeddings", json={"input": TEXTS[:3], "model": "isosim:raw"}).json()["data"]
    other = server.client.post("/v1/embeddings", json={"input": TEXTS[:3], "model": "isosim:raw"}).json()
    assert [one["embedding"] for one in other["data"]] == [pytest.approx(one["embedding"], abs=1e-5) for one in rows]
    estimated = sum(-(-len(text.encode()) // 4) for text in TEXTS[:3])
    assert other["usage"] == {"prompt_tokens": estimated, "total_tokens": estimated, "estimated": True}


def remote_requests(server: Server, result: str = "ok") -> float:
    lines = server.client.get("/metrics").text.splitlines()
    name = f'isosim_remote_requests_total{{result="{result}"}} '
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


class Callers:
    """Eight callers that score numbered pairs until they are told to stop. A context manager."""

    def __init__(self, server: Server, score: Callable[[list[str]], float], allowed: Callable[[httpx.Response], bool]):
        self.server, self.score, self.allowed = server, score, allowed
        self.seen, self.wrong, self.asked, self.answered = Counter[int](), list[Any](), set[int](), set[int]()
        self._chosen, self._stop, self._pool = pairs(700), threading.Event(), ThreadPoolExecutor(8)

    def pair(self, number: int) -> list[str]:
        return [f"{number} {text}" for text in self._chosen[number % 700]]

    def _call(self, first: int) -> None:
        with httpx.Client(base_url=self.server.url, timeout=60) as client:
            for number in itertools.count(first, 8):
                if self._stop.is_set():
                    return
                self.asked.add(number)
                answer = client.post("/similarity", json={"pairs": [self.pair(number)]})
                self.seen[answer.status_code] += 1
                if answer.status_code == 200:
                    self.answered.add(number)
                    if abs(answer.json()["similarity"][0] - self.score(self.pair(number))) > 1e-4:
                        self.wrong.append((number, answer.text))
                elif not self.allowed(answer):
                    self.wrong.append((number, answer.status_code, answer.text))

    def more(self, status: int, count: int) -> None:
        """Waits for so many more answers with a status."""
        target = self.seen[status] + count
        wait_until(lambda: self.seen[status] > target)

    def __enter__(self) -> Self:
        self._calls = [self._pool.submit(self._call, number) for number in range(8)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for call in self._calls:
            call.result(60)
        self._pool.shutdown()


def test_a_swap_under_load_lets_no_score_of_the_new_model_out(serve: Serve, far: Path, remote: RemoteServer) -> None:
    remote.wait = 0.01
    server = serve(model_store=far, encoder="far")
    with Callers(
        server, lambda pair: cosine(remote, *pair), lambda no: no.status_code == 503 and "encoder_changed" in no.text
    ) as callers:
        callers.more(200, 100)
        remote.seed = 1
        callers.more(503, 100)
        ready = server.client.get("/readyz")
        assert (ready.status_code, "encoder_changed" in ready.text) == (503, True)
        assert 'isosim_remote_changed{encoder="far"} 1.0' in server.client.get("/metrics").text
        assert remote_requests(server, "changed") > 0
        remote.seed = 0
        callers.more(200, 100)
        wait_until(lambda: server.client.get("/readyz").status_code == 200)
    assert callers.wrong == []
    # What is in the cache is of the first model.
    asked = [callers.pair(number) for number in sorted(callers.asked)[:400]]
    remote.requests.clear()
    found = server.client.post("/similarity", json={"pairs": asked}).json()["similarity"]
    assert found == pytest.approx([cosine(remote, *pair) for pair in asked], abs=1e-4)
    kept = {text for number in callers.answered for text in callers.pair(number)}
    assert kept
    assert not kept.intersection(remote.texts)


def test_a_calibration_sends_its_texts_to_the_other_server_and_no_more_than_is_allowed(
    serve: Serve, far: Path, remote: RemoteServer
) -> None:
    server = serve(model_store=far, encoder="far", max_remote_texts=1200)
    done = server.calibrate("tickets", sentences(300))
    assert (done["status"], done["version"]) == ("succeeded", 1)
    assert set(sentences(300)) <= set(remote.texts)
    assert any("are sent to the server of encoder far" in notice for notice in done["notices"])
    flags = server.client.post("/similarity", json={"pairs": pairs(3), "domain": "tickets"}).json()
    assert len(flags["percentile"]) == 3
    asked = len(remote.requests)
    for path, body in (
        ("/calibrate", {"domain": "tickets", "texts": sentences(1500)}),
        ("/matches", {"a": sentences(700), "b": sentences(1500)[700:]}),
        ("/domains/tickets/labels", {"labels": [[a, b, n % 2] for n, (a, b) in enumerate(pairs(601))]}),
    ):
        refused = server.client.post(path, json=body)
        assert (refused.status_code, "at most 1,200 are allowed" in refused.text) == (422, True), refused.text
    assert {text for request in remote.requests[asked:] for text in request["input"]} <= set(PROBES)


def test_a_server_starts_while_its_encoder_is_away_and_is_ready_when_it_has_answered(
    serve: Serve, far: Path, tmp_path: Path
) -> None:
    port, away = free_port(), free_port()
    encoders = EncoderStore.at(far)
    encoders.readdress(encoders.find("far"), Endpoint(f"http://127.0.0.1:{away}/v1", "m"))
    log = tmp_path / "serve.log"
    process = Process(start(["serve"], log, port=port, model_store=far, encoder="far"), log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: httpx.get(f"{url}/livez").status_code == 200, 60)
        ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, "gives no vectors" in ready.text) == (503, True)
        assert httpx.post(f"{url}/similarity", json={"pairs": pairs(1)}).status_code == 424
        with RemoteServer(dim=16).running(away):
            wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
            assert httpx.post(f"{url}/similarity", json={"pairs": pairs(1)}).status_code == 200
    finally:
        process.kill()
    said = [json.loads(line) for line in log.read_text().splitlines() if "gives no vectors" in line]
    assert len([line for line in said if "request_id" not in line]) == 1  # once, beside the requests that failed for it
