"""Clients that are slow, leave, send far too much or are far too many: the others do not notice."""

import asyncio
import json
import re
import resource
import select
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.faults.raw import address, connected, head, status
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

CONNECTIONS = 2000
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


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may have as many connections as it likes; those it starts from here begin with few."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def at_once(server: Server, count: int) -> Counter[int]:
    """The statuses of so many requests, each on a connection of its own, all open before the first is sent."""
    body = json.dumps({"pairs": [["a wooden boat", "the garden gate"]]}).encode()
    request = head("/similarity", f"content-length: {len(body)}", "connection: close") + body

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*address(server))

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return status(answer)

    async with asyncio.timeout(120):
        connections = await asyncio.gather(*(connect() for _ in range(count)))
        return Counter(await asyncio.gather(*(ask(*connection) for connection in connections)))


def test_two_thousand_connections_at_once_are_answered_and_leave_the_server_healthy(
    many_files: None, serve: Serve, store: object
) -> None:
    """Also where it was started with a limit of 256 file descriptors."""
    server = serve(model_store=store, encoder="tiny")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most > CONNECTIONS + 100, "the test needs a higher hard limit of open files"
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = asyncio.run(at_once(server, CONNECTIONS))
    assert sum(found.values()) == CONNECTIONS
    assert found.keys() <= {200, 429, 503}, found
    assert found[200] > 0
    healthy(server)
    assert not re.search("Too many open files|Traceback", server.log.read_text())
