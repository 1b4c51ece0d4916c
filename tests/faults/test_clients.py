"""Clients that are slow, leave, send far too much or are far too many: the others do not notice."""

import json
import re
import select
import time

import pytest

from tests.faults.raw import connected, head, status
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

HUGE = 100_000_000  # bytes
PAIR = {"pairs": [sentences(2)]}


def healthy(server: Server) -> None:
    assert server.client.get("/readyz").status_code == 200
    answer = server.client.post("/similarity", json=PAIR)
    assert answer.status_code == 200, answer.text


def test_a_caller_who_hangs_up_is_noticed_and_nothing_more_is_computed_for_it(serve: Serve, store: object) -> None:
    server = serve(model_store=store, encoder="tiny", memory_cache_bytes=0, max_batch_tokens=32)
    pairs = [[f"{number} {text}", f"{text} {number}"] for number, text in enumerate(sentences(500))]
    body = json.dumps({"pairs": pairs}).encode()
    with connected(server) as connection:
        connection.sendall(head("/similarity", f"content-length: {len(body)}") + body)
        wait_until(lambda: "isosim_queued_texts 0.0" not in server.client.get("/metrics").text, every=0.001)
    left = 'isosim_request_duration_seconds_count{route="/similarity",status="499"} 1.0'
    wait_until(lambda: left in server.client.get("/metrics").text)
    text = server.client.get("/metrics").text
    computed = re.search(r"^isosim_batch_texts_sum (\S+)", text, re.M)
    assert computed is not None
    assert float(computed[1]) < 1000
    healthy(server)


@pytest.mark.parametrize("length", ["declared", "chunked"])
def test_a_hundred_megabytes_are_refused_at_once_and_not_kept(tiny_server: Server, length: str) -> None:
    healthy(tiny_server)
    before = tiny_server.resident_bytes()
    piece = b"x" * 1_000_000
    frame = piece if length == "declared" else f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    how = f"content-length: {HUGE}" if length == "declared" else "transfer-encoding: chunked"
    with connected(tiny_server) as connection:
        started = time.monotonic()
        connection.sendall(head("/similarity", how))
        for _ in range(HUGE // len(piece)):
            readable, _, _ = select.select([connection], [], [], 0)
            if readable:
                break
            try:
                connection.sendall(frame)
            except OSError:  # it hung up on us, and has answered
                break
        assert status(connection.recv(65536)) == 413
        assert time.monotonic() - started < 5
    assert tiny_server.resident_bytes() - before < 30_000_000
    healthy(tiny_server)
