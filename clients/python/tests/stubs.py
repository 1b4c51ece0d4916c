"""A server that gives prepared answers, and a clock that moves only when a client sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2

from isosim_client import AsyncClient, Client, IsosimError, Retries

SCORES = {
    "domain": "default", "version": 1, "encoder": "e", "method": "identity", "cosine": [0.5], "similarity": [0.5],
}  # fmt: skip
OVERLOADED = {"error": "full", "error_type": "Overloaded", "request_id": "r1"}

Step = Exception | Callable[[httpx2.Request], httpx2.Response]


def response(status: int, body: Any = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json=body, headers=named)


def says(status: int, body: Any = None, **headers: str) -> Step:
    """An answer, made anew for each request."""
    return lambda _: response(status, body, **headers)


def job(status: str, **facts: Any) -> dict[str, Any]:
    return {"job": "j1", "domain": "letters", "status": status, **facts}


class Time:
    """Clock and sleep. `pauses` has the seconds of each sleep."""

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
    """Answers each request with the next step, and repeats the last one. `requests` has the requests it got."""

    def __init__(self, *steps: Step, takes: float = 0.0) -> None:
        self.steps, self.takes = steps, takes
        self.requests: list[httpx2.Request] = []
        self.time = Time()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        step = self.steps[min(len(self.requests), len(self.steps) - 1)]
        self.requests.append(request)
        self.time.now += self.takes
        if isinstance(step, Exception):
            raise step
        return step(request)

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

    def ask(self, act: Callable[[Any], Any], **patience: Any) -> Any:
        """The result of a method, called on each of the two clients; for `match` and `result`, a list.

        Checks that both clients send the same requests, pause for the same times, and have the same result or error.
        """

        async def awaited() -> Any:
            async with self.async_client(**patience) as client:
                made = act(client)
                return [one async for one in made] if isinstance(made, AsyncIterator) else await made

        def plain() -> Any:
            with self.client(**patience) as client:
                made = act(client)
                return list(made) if isinstance(made, Iterator) else made

        seen: list[Any] = []
        outcome: Any = None
        runs: list[Callable[[], Any]] = [plain, lambda: asyncio.run(awaited())]
        for run in runs:
            self.requests, self.time = [], Time()
            try:
                outcome = run()
                told = outcome
            except IsosimError as error:
                outcome, told = error, (type(error), str(error))
            sent = [(one.method, one.url, one.content, one.extensions["timeout"]) for one in self.requests]
            seen.append((told, sent, self.time.pauses))
        assert seen[0] == seen[1]
        if isinstance(outcome, IsosimError):
            raise outcome
        return outcome
