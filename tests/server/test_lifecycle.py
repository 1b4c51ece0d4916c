"""From start to end of a server: what it checks before it is ready, how it leaves, what ends it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from isosim.store.artifacts import SEAL, read_manifest, sealed_by
from loadtest.client import Load, closed_loop, request
from tests.faults.load import metric
from tests.faults.raw import connected, head
from tests.processes import Process, RedisServer, Serve, Server, command, environment, free_port, wait_until
from tests.text import sentences

PAIRS = {"pairs": [sentences(2)]}
REPLACEMENTS = 4
ANSWERED = 'isosim_request_duration_seconds_count{route="/similarity",status="200"}'


BODY = json.dumps(PAIRS).encode()
REQUEST = head("/similarity", f"content-length: {len(BODY)}") + BODY


def test_sigterm_first_leads_callers_elsewhere_and_serves_on(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", drain_delay=3)
    kept = server.client.post("/similarity", json=PAIRS)
    assert "connection" not in kept.headers
    server.popen.terminate()
    wait_until(lambda: server.client.get("/readyz").status_code == 503)
    assert server.client.get("/livez").status_code == 200
    served = server.client.post("/similarity", json=PAIRS)
    assert served.status_code == 200
    assert served.headers["connection"] == "close"
    assert served.json() == kept.json()
    assert server.wait() == -signal.SIGTERM  # after the shutdown, as a signal's default would
    assert "Application shutdown complete" in server.log.read_text()


def test_a_second_sigterm_passes_over_the_delay(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", drain_delay=3600)
    server.popen.terminate()
    wait_until(lambda: server.client.get("/readyz").status_code == 503)
    assert server.stop() == -signal.SIGTERM


@contextlib.contextmanager
def half_sent(server: Server) -> Iterator[socket.socket]:
    """A connection with a request that is being read; its last ten bytes are missing."""
    with connected(server) as connection:
        connection.sendall(REQUEST[:-10])
        wait_until(lambda: "isosim_requests_in_flight 2.0" in server.client.get("/metrics").text)  # this and itself
        yield connection


def test_what_is_in_flight_is_finished_and_nothing_new_is_taken(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny")
    with half_sent(server) as connection:
        server.popen.terminate()
        wait_until(lambda: "Shutting down" in server.log.read_text())
        with pytest.raises(ConnectionRefusedError), connected(server):
            pass
        connection.sendall(REQUEST[-10:])
        answer = connection.makefile("rb").read().lower()  # to the connection's end
    assert answer.startswith(b"http/1.1 200")
    assert b"connection: close" in answer
    assert b'"similarity"' in answer
    assert server.wait() == -signal.SIGTERM


def test_it_ends_in_time_whatever_a_client_does(serve: Serve, store: Path) -> None:
    server = serve(model_store=store, encoder="tiny", drain_seconds=1)
    with half_sent(server):
        assert server.stop() == -signal.SIGTERM


BALANCER = """
defaults
  mode http
  timeout connect 2s
  timeout client 30s
  timeout server 30s
  timeout check 5s
  retries 0
frontend in
  bind 127.0.0.1:{port}
  default_backend out
backend out
  option httpchk GET /readyz
  default-server inter 100ms fall 1 rise 1 check
  server a 127.0.0.1:{a}
  server b 127.0.0.1:{b}
"""


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[tuple[int, int, int]]:
    """Its port and those of its two servers; it asks each 10 times a second whether it is ready, and never retries."""
    ports = free_port(), free_port(), free_port()
    config = tmp_path / "haproxy.cfg"
    config.write_text(BALANCER.format(port=ports[0], a=ports[1], b=ports[2]))
    binary = shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin")
    assert binary, "haproxy is missing; make test-all installs it"
    log = tmp_path / "haproxy.log"
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [binary, "-q", "-db", "-f", str(config)], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    process = Process(popen, log)
    yield ports
    process.kill()


def test_rolling_replacement_under_load_fails_no_request(
    serve: Serve, store: Path, redis_server: RedisServer, balancer: tuple[int, int, int]
) -> None:
    """64 connections through a balancer, while each server is replaced by a new one."""
    port, *behind = balancer
    settings = {"model_store": store, "encoder": "tiny", "redis_url": redis_server.url, "drain_delay": 2}
    old = serve(port=behind[0], **settings)
    wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200)
    enough = threading.Event()
    texts = sentences(2000)

    def bodies() -> Iterator[bytes]:
        number = 0
        while not enough.is_set():
            number += 1
            pair = [texts[number % 2000], texts[number * 7 % 2000]]
            yield request("/similarity", json.dumps({"pairs": [pair]}).encode())

    loads: list[Load] = []
    client = threading.Thread(target=lambda: loads.append(asyncio.run(closed_loop(port, bodies(), 64, 600))))
    client.start()
    try:
        for number in range(1, REPLACEMENTS + 1):
            new = serve(port=behind[number % 2], **settings)
            # What the balancer has seen, not what is true: a rollout waits for readiness, and then for `inter`.
            wait_until(lambda new=new: ANSWERED in new.client.get("/metrics").text and metric(new, ANSWERED) > 100)  # type: ignore[misc]
            assert old.stop() == -signal.SIGTERM
            assert "Cancel" not in old.log.read_text()
            old = new
    finally:
        enough.set()
        client.join()
    (load,) = loads
    print(f"{len(load.statuses)} requests over {REPLACEMENTS} replacements")
    assert len(load.statuses) > 1000
    assert (load.failures, set(load.statuses)) == (0, {200})


DYING = """
import ctypes, signal, sys, threading
from isosim.cli import main

def end_encoder(*_):
    for thread in threading.enumerate():
        if thread.name.startswith("encode"):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))

signal.signal(signal.SIGUSR1, end_encoder)
sys.argv = ["isosim", "serve"]
main()
"""


def test_a_server_does_not_outlive_its_encoder(store: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [sys.executable, "-c", DYING], stdout=file, stderr=file, start_new_session=True,
            env=environment(model_store=store, encoder="tiny", port=port),
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    process = Server(popen, log, url)
    try:
        wait_until(lambda: httpx.get(url + "/readyz").status_code == 200)
        popen.send_signal(signal.SIGUSR1)
        assert httpx.post(url + "/similarity", json=PAIRS).status_code == 503  # the threads meet their end in a batch
        assert process.wait() == 1
        assert "encoder's thread has died or hangs" in log.read_text()
    finally:
        process.kill()


def with_probe(store: Path, changed: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """The encoder's manifest, sealed again, with another probe or without one."""
    (path,) = (store / "encoders" / "tiny").glob("*/manifest.json")
    facts = read_manifest(path.parent)
    probe = changed(facts.pop("probe"))
    facts |= {} if probe is None else {"probe": probe}
    path.write_text(json.dumps(facts | {SEAL: sealed_by(facts)}))


def test_an_encoder_that_gives_other_vectors_than_at_its_export_is_not_served(store: Path) -> None:
    with_probe(store, lambda probe: probe | {"pooled": np.roll(probe["pooled"], 1).tolist()})
    refused = command("serve", model_store=store, encoder="tiny", port=free_port())
    assert (refused.returncode != 0, "another vector here than at its export" in refused.stderr) == (True, True)


def test_an_export_without_a_known_vector_is_served_with_a_warning(serve: Serve, store: Path) -> None:
    with_probe(store, lambda _: None)
    assert "cannot be checked: its export stored no vector" in serve(model_store=store, encoder="tiny").log.read_text()
