"""Bytes on a socket, as clients send them that no library stands for."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.processes import Server


def address(server: Server) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def head(path: str, *lines: str, kind: str = "application/json") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", f"content-type: {kind}", *lines, "", ""]).encode()


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(address(server), 30) as connection:
        yield connection


def status(answer: bytes) -> int:
    """Of the first line of an answer."""
    return int(answer.split(b" ", 2)[1])
