"""Real connections that fail: a client reports the right error, and follows a job across the failure."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from stubs import SCORES

from isosim_client import Client, ConnectionFailed, ConnectionLost, IsosimError, Retries, TimedOut

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
PAIRS = [("a", "b")]


@contextmanager
def listening(*answers: bytes | None) -> Iterator[str]:
    """The address of a server that closes each connection after its answer; None: it stays silent instead."""
    left = list(answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer = left.pop(0)
            while self.request.recv(65536) and answer is None:
                pass
            self.request.sendall(answer or b"")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def large(client: Client) -> Any:
    return client.calibrate(("A sentence." * 1000 for _ in range(10_000)), domain="d")  # 110 MB


@pytest.mark.parametrize(
    ("act", "answer", "error"),
    [
        (lambda client: client.similarity(PAIRS), b"", ConnectionLost),
        (
            lambda client: client.similarity(PAIRS),
            HEAD + b"content-length: 900\r\n\r\n" + json.dumps(SCORES).encode(),
            ConnectionLost,
        ),
        (large, b"", ConnectionLost),
        (lambda client: client.similarity(PAIRS), None, TimedOut),
    ],
)
def test_a_connection_that_breaks_or_is_silent(
    act: Callable[[Client], Any], answer: bytes | None, error: type[IsosimError]
) -> None:
    with listening(answer) as url, pytest.raises(error):
        act(Client(url, retries=Retries(times=0), timeout=0.2))


def test_a_port_on_which_nothing_listens() -> None:
    with listening() as url:
        pass
    client = Client(url, retries=Retries(times=0))
    with pytest.raises(ConnectionFailed, match=f"no connection to {url}: .*is the server running"):
        client.similarity(PAIRS)
    assert not client.ready()
