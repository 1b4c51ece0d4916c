"""What the log says of requests, and of the process itself."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from isosim.api.trace import Observer, Trace
from isosim.encoders.embedding import Embeddings
from isosim.scoring.calibration import Calibration
from tests.observability.conftest import Line, event, events, lines_of
from tests.processes import Process, RedisServer, Serve, Server, environment, free_port, wait_until
from tests.security.conftest import key_file
from tests.text import sentences

PAIR = {"pairs": [sentences(2)]}


def ask(server: Server, name: str, body: dict[str, Any] = PAIR, **headers: str) -> Line:
    """The access line of one scoring request."""
    server.client.post("/similarity", json=body, headers={"x-request-id": name, **headers})
    return event(server.log, logger="isosim.access", request_id=name)


def test_a_request_is_one_line_with_its_parts(serve: Serve, store: Path, redis_server: RedisServer) -> None:
    server = serve(model_store=store, encoder="tiny", redis_url=redis_server.url)
    first, again = ask(server, "first"), ask(server, "again")
    assert (first["method"], first["route"], first["status"], first["level"]) == ("POST", "/similarity", 200, "info")
    assert (first["domain"], first["version"], first["texts"], first["client"]) == ("default", 0, 2, "127.0.0.1")
    assert (first["memory_hits"], first["redis_hits"], again["memory_hits"]) == (0, 0, 2)
    assert first["tokens"] > 0 == again["tokens"]
    parts = ("cache_ms", "tokenization_ms", "queue_ms", "inference_ms", "calibration_ms")
    assert all(first[name] > 0 for name in parts)
    assert first["duration_ms"] >= max(first[name] for name in parts)
    refused = ask(server, "refused", {"pairs": []})
    assert (refused["status"], refused["error_type"]) == (400, "Empty")
    assert "texts" not in refused
    server.client.get("/domains/default?query=1")
    line = event(server.log, route="/domains/{domain}")
    assert "query" not in json.dumps(line)
    server.client.get("/livez")
    server.client.get("/metrics")
    assert len(ask(server, "last")) > 10
    assert not events(server.log, route="/livez") + events(server.log, route="/metrics")


def test_the_line_of_a_domain_that_a_key_may_not_use_names_it(serve: Serve, store: Path, tmp_path: Path) -> None:
    keys = key_file(tmp_path, {"a-key": "read domains=mine some team"})
    server = serve(model_store=store, encoder="tiny", api_keys_file=keys)
    server.client.headers["authorization"] = "Bearer a-key"
    for number, domain in enumerate(("theirs", "theirs@3")):
        line = ask(server, f"scores-{number}", PAIR | {"domain": domain})
        assert (line["status"], line["domain"], line["caller"]) == (403, "theirs", "some team")
        assert "version" not in line
    server.client.get("/domains/theirs", headers={"x-request-id": "path"})
    assert event(server.log, request_id="path")["domain"] == "theirs"
    server.client.post("/domains/mine/rollback", headers={"x-request-id": "scope"})
    line = event(server.log, request_id="scope")
    assert (line["status"], "domain" in line) == (403, False)  # the scope is the reason, for any domain


def test_a_line_says_how_many_texts_another_request_had_computed() -> None:
    nothing: Any = np.zeros(0, np.intp)
    traces = [
        Trace("id", 0.0, calibration=Calibration("d", 1, "sn", "e"), embeddings=made)
        for made in (Embeddings([], nothing, nothing, joined=2), Embeddings([], nothing, nothing, computed=2))
    ]
    facts = [trace.facts({"method": "POST"}, "/similarity", 0.0) for trace in traces]
    assert [(one["tokens"], one.get("joined")) for one in facts] == [(0, 2), (0, None)]


def test_only_slow_and_failed_requests_are_logged_where_that_is_asked_for(
    indiscreet: Callable[..., Server], store: Path
) -> None:
    written: list[str] = []
    log = Observer(lambda *line: written.append(line[2]), "slow")
    for status, seconds, probe in ((200, 0.9, False), (201, 1.0, False), (200, 0.1, True), (503, 0.1, True)):
        log.end({"method": "GET"}, Trace("id", 0.0, status=status, probe=probe), "/", seconds)
    assert written == ["GET / 201", "GET / 503"]
    server = indiscreet(model_store=store, encoder="tiny", access_log="off")
    server.client.post("/similarity", json=PAIR)
    server.client.post("/fail/RuntimeError")
    failed = event(server.log, error="RuntimeError")
    assert failed["request_id"]
    assert events(server.log, logger="isosim.access") == [failed]


def test_a_process_says_how_it_starts_is_ready_drains_and_stops(
    serve: Serve, store: Path, redis_server: RedisServer
) -> None:
    server = serve(model_store=store, encoder="tiny", redis_url=redis_server.url, drain_seconds=5)
    starting, ready = event(server.log, message="starting"), event(server.log, message="ready")
    assert (starting["encoder"], starting["precision"], starting["redis"]) == ("tiny", "fp32", redis_server.url)
    assert starting["engine"] == "onnxruntime"
    assert {"release", "encoder_digest", "threads", "runs", "max_queued_texts", "drain_seconds"} <= starting.keys()
    assert ready["url"] == server.url
    assert 0 < ready["seconds"] < 60
    assert "Redis cannot be used" not in server.log.read_text()  # it answers, only the start keeps the process busy
    server.stop()
    stopped = event(server.log, message="stopped")
    assert stopped["aborted"] == 0
    assert lines_of(server.log)[-1]["message"].startswith("Finished server process")


def test_what_was_under_way_at_the_end_is_told(serve: Serve, store: Path) -> None:
    """A stream of events ends by itself, an upload that stalls is cut off."""
    server = serve(model_store=store, encoder="tiny", drain_seconds=5)
    body = {"domain": "d", "texts": sentences(2000), "method": "flow"}
    job = server.client.post("/calibrate", json=body).json()["job"]
    seen: list[int] = []

    def follow() -> None:
        seen.append(httpx.get(f"{server.url}/calibrate/{job}/events", timeout=30).status_code)

    def stall() -> Any:
        yield b"a line\n"
        stalled.set()
        server.wait()

    def upload() -> None:
        try:
            httpx.post(f"{server.url}/calibrate?domain=e", content=stall(), headers={"content-type": "text/plain"})
        except httpx.HTTPError:
            seen.append(0)

    stalled = threading.Event()
    threads = [threading.Thread(target=work) for work in (follow, upload)]
    for thread in threads:
        thread.start()
    stalled.wait(20)
    wait_until(lambda: "isosim_requests_in_flight 3.0" in server.client.get("/metrics").text)
    server.stop()
    for thread in threads:
        thread.join()
    draining, stopped = event(server.log, message="draining"), event(server.log, message="stopped")
    assert draining["under_way"] in (1, 2)  # the stream may end before the server says that it drains
    assert stopped["aborted"] == 1
    assert 200 in seen


def test_a_calibration_is_told_by_whoever_runs_it(
    serve: Serve, store: Path, redis_server: RedisServer, worker: Callable[..., Process]
) -> None:
    here = serve(model_store=store, encoder="tiny")
    job = here.calibrate("d", sentences(300), method="sn")
    begun = event(here.log, message="calibration begins")
    ended = event(here.log, message="calibration ended")
    assert (begun["domain"], begun["method"], begun["sentences"]) == ("d", "sn", 300)
    assert (ended["job"], ended["status"], ended["version"]) == (begun["job"], "succeeded", job["version"])
    here.stop()
    there = worker(model_store=store, redis_url=redis_server.url)
    server = serve(model_store=store, encoder="tiny", redis_url=redis_server.url, local_worker=False)
    server.calibrate("d", sentences(300), method="sn")
    assert event(there.log, message="calibration ended")["promoted"] in (True, False)


def test_a_refused_start_is_a_line_too(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "isosim.cli", "serve"], capture_output=True, text=True, check=False, timeout=60,
        env=environment(model_store=store, encoder="nope", prot=1),
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert (lines[-1]["level"], lines[-1]["logger"]) == ("critical", "isosim")
    assert "isosim export" in lines[-1]["message"]
    assert any("did you mean ISOSIM_PORT?" in line["message"] for line in lines)


@pytest.mark.parametrize("form", ["auto", "json"])
def test_a_person_at_a_terminal_reads_words(store: Path, form: str) -> None:
    ours, theirs = pty.openpty()
    port = free_port()
    popen = subprocess.Popen(
        [sys.executable, "-m", "isosim.cli", "serve"], stdout=theirs, stderr=theirs, start_new_session=True,
        env=environment(model_store=store, encoder="tiny", port=port, log_format=form),
    )  # fmt: skip
    os.close(theirs)
    process = Process(popen, Path(os.devnull))  # its log goes to the terminal
    said = b""
    try:
        while b"Uvicorn running" not in said and popen.poll() is None:
            said += os.read(ours, 65536)
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200)
        popen.terminate()
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:
                break
    finally:
        process.kill()
        os.close(ours)
    text = said.decode()
    if form == "json":
        assert all(json.loads(line) for line in text.splitlines())
    else:
        assert f"ready on http://127.0.0.1:{port}" in text
        assert "INFO    isosim: starting  release=" in text
        assert '{"time"' not in text


def test_a_log_that_nobody_reads_stops_no_request_and_is_counted(store: Path) -> None:
    """Once the pipe and the queue are full, lines are dropped; a server that waited for its log would hang here."""
    port = free_port()
    popen = subprocess.Popen(
        [sys.executable, "-m", "tests.observability.indiscreet", "--queue", "150"], start_new_session=True,
        env=environment(model_store=store, encoder="tiny", port=port), stderr=subprocess.PIPE,
    )  # fmt: skip
    process = Process(popen, Path(os.devnull))  # its log goes into a pipe that the test does not read
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            answers = {client.post("/similarity", json={"pairs": []}).status_code for _ in range(1000)}
            metrics = client.get("/metrics").text.splitlines()
        assert answers == {400}
        dropped = next(line for line in metrics if line.startswith("isosim_log_lines_dropped_total"))
        assert float(dropped.split()[1]) > 0
        assert process.stop() == -signal.SIGTERM  # and it does not hold up the end
    finally:
        process.kill()
        assert popen.stderr is not None
        popen.stderr.close()
