"""Callers that go on scoring while something breaks, and compare every answer with what it was before."""

import threading
import time
from typing import Any, Self

import httpx

from tests.processes import Server, wait_until
from tests.text import sentences

KNOWN = [sentences(8)[n : n + 2] for n in range(0, 8, 2)]
CLOSE = 1e-6  # of a score; what shares a batch changes no more


def scores(client: httpx.Client, pairs: list[list[str]], domain: str) -> httpx.Response:
    return client.post("/similarity", json={"pairs": pairs, "domain": domain})


class Load:
    """Four callers that score new and known texts until they are told to stop. A context manager."""

    def __init__(self, server: Server, domain: str = "default", pause: float = 0.01) -> None:
        self.server, self.domain, self.pause = server, domain, pause
        before = scores(server.client, KNOWN, domain)
        assert before.status_code == 200, before.text
        self.expected: list[float] = before.json()["similarity"]
        self.statuses: list[int] = []
        self.seconds: list[float] = []
        self.wrong: list[Any] = []  # known pairs with other scores
        self.may_change = False  # the domain is being calibrated anew
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(4)]

    def _call(self, number: int) -> None:
        with httpx.Client(base_url=self.server.url, timeout=30) as client:
            turn = 0
            while not self._stop.is_set():
                turn += 1
                pairs = [[f"caller {number} repairs {turn}", "the garden gate"], *KNOWN]
                started = time.monotonic()
                try:
                    answer = scores(client, pairs, self.domain)
                except httpx.TransportError as error:
                    self.wrong.append(error)
                    continue
                self.seconds.append(time.monotonic() - started)
                self.statuses.append(answer.status_code)
                if answer.status_code == 200 and not self.may_change:
                    found = answer.json()["similarity"][1:]
                    if max(abs(a - b) for a, b in zip(found, self.expected, strict=True)) > CLOSE:
                        self.wrong.append(found)
                time.sleep(self.pause)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, more: int) -> None:
        """Waits for so many answers more."""
        target = len(self.statuses) + more
        wait_until(lambda: len(self.statuses) >= target)

    def nothing_was_lost(self, slowest: float) -> None:
        """Every request was answered in time with the scores that were served before."""
        assert set(self.statuses) == {200}
        assert self.wrong == []
        assert max(self.seconds) < slowest


def metric(server: Server, name: str) -> float:
    """A series by the beginning of its line."""
    lines = server.client.get("/metrics").text.splitlines()
    return float(next(line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)))
