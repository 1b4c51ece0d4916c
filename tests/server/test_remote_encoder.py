"""A server whose encoder runs on another server: as exported ones answer, and what happens when that server fails."""

import itertools
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from isosim.encoders.store import EncoderStore, Endpoint
from isosim.export.remote import PROBES, register
from tests.adapters.encoder.remote_server import RemoteServer
from tests.processes import Process, Serve, Server, command, free_port, serve_with, start, wait_until
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


def test_what_needs_the_tokenizer_is_refused_and_says_where_it_is(serve: Serve, far: Path) -> None:
    server = serve(model_store=far, encoder="far")
    for path, body in (
        ("/tokenize", {"inputs": "a text"}),
        ("/embed", {"inputs": "a text", "truncation_direction": "Left"}),
    ):
        answer = server.client.post(path, json=body)
        assert answer.status_code == 422, path
        assert "far runs on another server" in answer.text
    refused = command("bundle", "default", "-o", str(far / "out.onnx"), model_store=far, encoder="far")
    assert refused.returncode == 1


def test_a_swap_under_load_lets_no_score_of_the_new_model_out(serve: Serve, far: Path, remote: RemoteServer) -> None:
    remote.wait = 0.01
    server = serve(model_store=far, encoder="far")
    stop, seen = threading.Event(), Counter[int]()
    wrong: list[Any] = []
    chosen = pairs(700)
    asked_for: set[int] = set()
    answered: set[int] = set()

    def ask(first: int) -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for number in itertools.count(first, 8):
                if stop.is_set():
                    return
                pair = [f"{number} {text}" for text in chosen[number % 700]]
                answer = client.post("/similarity", json={"pairs": [pair]})
                seen[answer.status_code] += 1
                asked_for.add(number)
                if answer.status_code == 200:
                    answered.add(number)
                    if abs(answer.json()["similarity"][0] - cosine(remote, *pair)) > 1e-4:
                        wrong.append((number, answer.json()))
                elif answer.status_code != 503 or "encoder_changed" not in answer.text:
                    wrong.append((number, answer.status_code, answer.text))

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(ask, number) for number in range(8)]
        wait_until(lambda: seen[200] > 100)
        remote.seed = 1
        wait_until(lambda: seen[503] > 100)
        ready = server.client.get("/readyz")
        assert (ready.status_code, "encoder_changed" in ready.text) == (503, True)
        assert 'isosim_remote_changed{encoder="far"} 1.0' in server.client.get("/metrics").text
        assert remote_requests(server, "changed") > 0
        remote.seed = 0
        before = seen[200]
        wait_until(lambda: seen[200] > before + 100)
        wait_until(lambda: server.client.get("/readyz").status_code == 200)
        stop.set()
        for future in futures:
            future.result(30)
    assert wrong == []
    # What is in the cache is of the first model.
    asked = [[f"{number} {text}" for text in chosen[number % 700]] for number in sorted(asked_for)[:400]]
    remote.requests.clear()
    found = server.client.post("/similarity", json={"pairs": asked}).json()["similarity"]
    assert found == pytest.approx([cosine(remote, *pair) for pair in asked], abs=1e-4)
    kept = {f"{number} {text}" for number in answered for text in chosen[number % 700]}
    assert kept
    assert not kept.intersection(remote.texts)


def test_a_server_killed_under_load_means_424_and_429_and_it_is_found_again(
    tiny_store: Path, serve: Serve, tmp_path: Path
) -> None:
    running: list[Any] = []
    behind = serve_with(tmp_path, running, model_store=tiny_store, encoder="tiny", memory_cache_bytes=0)
    try:
        register(tmp_path / "far", "far", f"{behind.url}/v1", "isosim:raw", lambda _: None)
        asked = [{"pairs": [[f"{number} {a}", f"{number} {b}"]]} for number, (a, b) in enumerate(pairs(400))]
        expected = [behind.client.post("/similarity", json=body).json()["similarity"][0] for body in asked]
        server = serve(model_store=tmp_path / "far", encoder="far", memory_cache_bytes=0)
        seen, stop = Counter[int](), threading.Event()
        wrong: list[Any] = []

        def ask(first: int) -> None:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                for number in itertools.count(first, 8):
                    if stop.is_set():
                        return
                    answer = client.post("/similarity", json=asked[number % 400])
                    seen[answer.status_code] += 1
                    if answer.status_code == 200:
                        if abs(answer.json()["similarity"][0] - expected[number % 400]) > 1e-4:
                            wrong.append((number, answer.text))
                    elif answer.status_code not in (424, 429):
                        wrong.append((number, answer.status_code, answer.text))

        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(ask, number) for number in range(8)]
            wait_until(lambda: seen[200] > 100)
            behind.kill()
            wait_until(lambda: seen[424] > 20)
            assert server.client.get("/readyz").status_code == 200  # what is cached is answered
            wait_until(lambda: 'isosim_remote_up{encoder="far"} 0.0' in server.client.get("/metrics").text)
            before = seen[200]
            serve_with(tmp_path, running, port=behind.port, model_store=tiny_store, encoder="tiny")
            wait_until(lambda: seen[200] > before + 100)
            stop.set()
            for future in futures:
                future.result(60)
        assert wrong == []
        assert 'isosim_remote_up{encoder="far"} 1.0' in server.client.get("/metrics").text
    finally:
        for process in running:
            process.kill()


def test_a_bad_answer_reaches_the_caller_as_424_and_no_cache(serve: Serve, far: Path, remote: RemoteServer) -> None:
    server = serve(model_store=far, encoder="far")
    remote.answer = lambda *_: (200, b"<html></html>", {})
    answer = server.client.post("/similarity", json={"pairs": pairs(3)})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    assert "its answer is no JSON" in answer.json()["error"]
    remote.answer = None
    good = server.client.post("/similarity", json={"pairs": pairs(3)}).json()["similarity"]
    assert good == pytest.approx([cosine(remote, *pair) for pair in pairs(3)], abs=1e-4)


def test_texts_of_one_request_go_out_together_and_those_of_many_side_by_side(
    serve: Serve, far: Path, remote: RemoteServer
) -> None:
    """Slow as it is, what is waited for is what concurrency gives: eight requests of up to 31 texts at once."""
    server = serve(model_store=far, encoder="far", max_wait=60)
    remote.requests.clear()
    server.client.post("/similarity", json={"pairs": pairs(1)}).raise_for_status()
    assert [len(request["input"]) for request in remote.requests] == [3]  # with a probe
    remote.wait = 1.0
    remote.requests.clear()
    texts = [f"{number} {text}" for number in range(25) for text in TEXTS]
    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(
                lambda at: httpx.post(f"{server.url}/embed", json={"inputs": texts[at : at + 100]}, timeout=60),
                range(0, 1000, 100),
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    assert remote.most_under_way == 8
    assert len([1 for request in remote.requests if set(request["input"]) - set(PROBES)]) <= 2 * 1000 / 31


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
    refused = server.calibrate("tickets", sentences(1500))
    assert refused["status"] == "failed"
    assert "at most 1,200 are allowed" in refused["error"]
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


def test_a_next_encoder_that_is_away_takes_nothing_from_the_servers_own(
    serve: Serve, far: Path, tiny_store: Path
) -> None:
    encoders = EncoderStore.at(far)
    encoders.readdress(encoders.find("far"), Endpoint(f"http://127.0.0.1:{free_port()}/v1", "m"))
    shutil.copytree(tiny_store / "encoders", far / "encoders", dirs_exist_ok=True)
    server = serve(model_store=far, encoder="tiny", next_encoder="far")  # it waits for readiness
    assert server.client.post("/similarity", json={"pairs": pairs(2)}).status_code == 200
    assert 'isosim_remote_up{encoder="far"} 0.0' in server.client.get("/metrics").text
