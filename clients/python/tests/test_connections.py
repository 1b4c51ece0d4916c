"""Real connections that fail: both clients report the right error, and follow a job across the failure."""

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stubs import SCORES, event, job

from isosim_client import AsyncClient, Client, ConnectionFailed, ConnectionLost, IsosimError, Retries, TimedOut

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = json.dumps(SCORES).encode()
ONCE = Retries(times=0)


@contextmanager
def listening(*answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that closes each connection after its answer; the last answer is repeated."""
    left = list(answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            (left.pop(0) if len(left) > 1 else left[0])(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def says(*parts: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(65536)
        for part in parts:
            connection.sendall(part)

    return answer


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


def silent(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def both(act: Callable[[Any], Any], url: str, **options: Any) -> Iterator[Callable[[], Any]]:
    """A method, called on each of the two clients."""

    async def awaited() -> Any:
        async with AsyncClient(url, **options) as client:
            return await act(client)

    def plain() -> Any:
        with Client(url, **options) as client:
            return act(client)

    yield plain
    yield lambda: asyncio.run(awaited())


def large(client: Any) -> Any:
    return client.calibrate(("A sentence." * 1000 for _ in range(10_000)), domain="d")  # 110 MB


def similarity(client: Any) -> Any:
    return client.similarity([("a", "b")])


@pytest.mark.parametrize(
    ("act", "answer", "error"),
    [
        (similarity, says(), ConnectionLost),
        (similarity, says(HEAD + b"content-length: 900\r\n\r\n" + ANSWER), ConnectionLost),
        (large, says(), ConnectionLost),
        (similarity, silent, TimedOut),
    ],
)
def test_a_connection_that_breaks_or_is_silent(
    act: Callable[[Any], Any], answer: Callable[[socket.socket], None], error: type[IsosimError]
) -> None:
    with listening(answer) as url:
        for call in both(act, url, retries=ONCE, timeout=0.2):
            with pytest.raises(error):
                call()


def test_a_port_on_which_nothing_listens() -> None:
    with listening(silent) as url:
        pass
    for call in both(similarity, url, retries=ONCE):
        with pytest.raises(ConnectionFailed, match=f"no connection to {url}: .*is the server running"):
            call()
    for call in both(lambda client: client.ready(), url):
        assert call() is False


def test_a_job_is_followed_across_a_broken_stream() -> None:
    torn = says(STREAM + chunk(event(job("running"))), b"40\r\ndata: {")
    done = says(STREAM + chunk(event(job("succeeded", version=2))) + b"0\r\n\r\n")
    for number in range(2):
        with listening(torn, done) as url:
            call = list(both(lambda client: client.wait("j1"), url, retries=Retries(first=0.01)))[number]
            assert call().version == 2
