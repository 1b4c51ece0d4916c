"""The log of a server in its own process, line by line."""

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import Process, Server, environment, free_port, wait_until

Line = dict[str, Any]


def lines_of(log: Path) -> list[Line]:
    """Every line must be an event: whatever else a process prints fails here."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def events(log: Path, **wanted: Any) -> list[Line]:
    return [line for line in lines_of(log) if wanted.items() <= line.items()]


def event(log: Path, **wanted: Any) -> Line:
    """The first line with these facts, once it is there."""
    found: list[Line] = wait_until(lambda: events(log, **wanted), seconds=20)
    return found[0]


@pytest.fixture
def indiscreet(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers whose routes fail in the words of what they were sent."""
    running: list[Process] = []

    def begin(**settings: Any) -> Server:
        port, log = free_port(), tmp_path / f"indiscreet-{len(running)}.log"
        with log.open("ab") as file:
            popen = subprocess.Popen(
                [sys.executable, "-m", "tests.observability.indiscreet"],
                env=environment(port=port, **settings), stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        server = Server(popen, log, url, httpx.Client(base_url=url, timeout=60))
        running.append(server)
        wait_until(lambda: httpx.get(url + "/readyz").status_code == 200)
        return server

    yield begin
    for process in running:
        process.kill()


def hang_up(server: Server, request: bytes) -> None:
    """Sends a request and resets the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(request)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
