"""A server that says what it is told, and a time that passes only when somebody waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx2

from isosim_client import AsyncClient, Client, Retries

SCORES = {
    "domain": "default", "version": 1, "encoder": "e", "method": "identity", "cosine": [0.5], "similarity": [0.5],
}  # fmt: skip
OVERLOADED = {"error": "full", "error_type": "Overloaded", "request_id": "r1"}

Step = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


def response(status: int, body: Any = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json=body, headers=named)


def says(status: int, body: Any = None, **headers: str) -> Step:
    """The same answer, however often it is asked for."""
    return lambda _: response(status, body, **headers)


def job(status: str, **facts: Any) -> dict[str, Any]:
    return {"job": "j1", "domain": "letters", "status": status, **facts}


def event(state: dict[str, Any]) -> bytes:
    return b"event: state\ndata: " + json.dumps(state, ensure_ascii=False).encode() + b"\n\n"


class Stream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """An answer's body in given pieces; a piece may be an exception."""

    def __init__(self, pieces: Iterable[bytes | Exception]) -> None:
        self.pieces = list(pieces)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> Any:
        for piece in self:
            yield piece


def streams(*pieces: bytes | Exception) -> Step:
    return lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream(pieces))


class Time:
    """Clock and sleep in one; `pauses` are the seconds that were waited."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


class Stub:
    """Plays its steps one a request, the last one again and again; `requests` are those it got."""

    def __init__(self, *steps: Step, takes: float = 0.0) -> None:
        self.steps, self.takes = list(steps), takes
        self.requests: list[httpx2.Request] = []
        self.time = Time()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.time.now += self.takes
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, httpx2.Response) else step(request)

    def retries(self, **patience: Any) -> Retries:
        return Retries(**{"random": lambda: 1.0, "clock": self.time.clock} | patience)

    def client(self, base_url: str = "http://stub", api_key: str | None = None, **patience: Any) -> Client:
        transport = httpx2.MockTransport(self)
        return Client(base_url, api_key, transport=transport, retries=self.retries(**patience), sleep=self.time.sleep)

    def async_client(self, **patience: Any) -> AsyncClient:
        transport = httpx2.MockTransport(self)
        return AsyncClient(
            "http://stub", transport=transport, retries=self.retries(**patience), sleep=self.time.sleep_async
        )
