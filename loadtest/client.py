"""An HTTP/1.1 client that uses little processor time, so that nearly all is left for the server under test.

Requests are prepared bytes. Latencies are measured with `time.perf_counter`, in seconds.
"""

import asyncio
import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httptools
import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles

TIMEOUT = 60.0  # maximum seconds that a run waits for missing answers


def request(path: str, body: bytes, method: str = "POST") -> bytes:
    """Bytes of a keep-alive request with a JSON body."""
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@dataclass
class Load:
    """Results of a load. Times are seconds since its start, with one entry per answer, in the order of the answers."""

    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    seconds: float = 0.0
    failures: int = 0  # requests that were not sent, or whose connection was lost
    client_cpu: float = 0.0  # processor seconds of this process
    without_retry_after: int = 0  # 429 answers that lack the header

    def where(self, wanted: Callable[[int], bool] = lambda status: status == 200) -> npt.NDArray[np.bool_]:
        return np.array([wanted(status) for status in self.statuses], bool)

    def latencies(self, wanted: Callable[[int], bool] = lambda status: status == 200) -> Doubles:
        latencies: Doubles = (np.array(self.ended) - np.array(self.started))[self.where(wanted)]
        return latencies

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return float(self.where().sum()) / self.seconds

    def summary(self) -> dict[str, float | dict[str, int]]:
        latencies = self.latencies()
        p50, p90, p99, p999 = np.percentile(latencies, [50, 90, 99, 99.9]) * 1e3 if len(latencies) else [np.nan] * 4
        counts = {str(status): count for status, count in sorted(Counter(self.statuses).items())}
        return {
            "per_second": round(self.rate, 1),
            "p50_ms": round(float(p50), 3),
            "p90_ms": round(float(p90), 3),
            "p99_ms": round(float(p99), 3),
            "p999_ms": round(float(p999), 3),
            "requests": len(self.statuses),
            "statuses": counts,
            "failures": self.failures,
            "seconds": round(self.seconds, 2),
            "client_cpu_share": round(self.client_cpu / self.seconds, 3) if self.seconds else 0.0,
        }


class Connection(asyncio.Protocol):
    """Sends one request at a time. Calls `on_answer(connection, status, body)`; status None: connection lost."""

    def __init__(self, on_answer: Callable[["Connection", int | None, bytes], None]) -> None:
        self.on_answer = on_answer
        self.sent_at = 0.0
        self.busy = False
        self.keep = False  # whether to store bodies and all headers
        self.headers: dict[str, str] = {}
        self.body = b""
        self.lost = False
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: Any) -> None:  # uvloop's transports do not inherit from asyncio's
        self.transport = transport

    def send(self, data: bytes, at: float) -> None:
        self.sent_at, self.busy = at, True
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.keep or name == b"retry-after":
            self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        if self.keep:
            self.body += data

    def on_message_complete(self) -> None:
        self.busy = False
        status, body = self.parser.get_status_code(), self.body
        self.body = b""
        self.parser = httptools.HttpResponseParser(self)
        self.on_answer(self, status, body)
        self.headers = {}

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self.busy:
            self.busy = False
            self.on_answer(self, None, b"")


async def connect(port: int, on_answer: Callable[[Connection, int | None, bytes], None]) -> Connection:
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Connection(on_answer), "127.0.0.1", port)
    return protocol


class Recorder:
    """Records the answers of a load."""

    def __init__(self) -> None:
        self.load = Load()
        self.zero = time.perf_counter()
        self.cpu = time.process_time()

    def note(self, connection: Connection, status: int | None) -> None:
        if status is None:
            self.load.failures += 1
            return
        self.load.started.append(connection.sent_at - self.zero)
        self.load.ended.append(time.perf_counter() - self.zero)
        self.load.statuses.append(status)
        if status == 429 and "retry-after" not in connection.headers:
            self.load.without_retry_after += 1

    def end(self) -> Load:
        self.load.seconds = time.perf_counter() - self.zero
        self.load.client_cpu = time.process_time() - self.cpu
        return self.load


async def closed_loop(port: int, requests: Iterator[bytes], connections: int, seconds: float) -> Load:
    """Each connection waits for an answer before its next request, until the time is over or the requests end."""
    recorder = Recorder()
    deadline = recorder.zero + seconds
    open_connections = 0
    ended = asyncio.get_running_loop().create_future()

    def next_of(connection: Connection, status: int | None, _: bytes) -> None:
        nonlocal open_connections
        if status != -1:
            recorder.note(connection, status)
        now = time.perf_counter()
        data = next(requests, None) if now < deadline and status is not None else None
        if data is not None:
            connection.send(data, now)
            return
        open_connections -= 1
        if not open_connections and not ended.done():
            ended.set_result(None)

    everyone = [await connect(port, next_of) for _ in range(connections)]
    recorder.zero, recorder.cpu = time.perf_counter(), time.process_time()
    deadline = recorder.zero + seconds
    open_connections = connections
    for connection in everyone:
        next_of(connection, -1, b"")
    await asyncio.wait_for(ended, seconds + TIMEOUT)
    load = recorder.end()
    for connection in everyone:
        connection.transport.close()
    return load


async def open_loop(port: int, requests: Iterator[bytes], per_second: float, seconds: float, seed: int = 0) -> Load:
    """Sends requests at random (Poisson) times, without waiting for answers. Latency counts from the planned time.

    Opens a new connection if none is free. If 2,000 connections are open, the request is not sent and counts as failed.
    """
    recorder = Recorder()
    free: deque[Connection] = deque()
    out = 0

    def answered(connection: Connection, status: int | None, _: bytes) -> None:
        nonlocal out
        out -= 1
        recorder.note(connection, status)
        if status is not None:
            free.append(connection)

    everyone = [await connect(port, answered) for _ in range(256)]
    free.extend(everyone)
    rng = random.Random(seed)  # noqa: S311 - arrival times
    recorder.zero, recorder.cpu = time.perf_counter(), time.process_time()
    planned = recorder.zero
    while planned < recorder.zero + seconds:
        planned += rng.expovariate(per_second)
        wait = planned - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        elif out % 16 == 0:
            await asyncio.sleep(0)  # the request is late: process answers first
        while free and free[0].lost:
            free.popleft()
        if not free:
            if len(everyone) >= 2000:
                recorder.load.failures += 1
                continue
            everyone.append(await connect(port, answered))
            free.append(everyone[-1])
        connection = free.popleft()
        out += 1
        connection.send(next(requests), planned)
    until = time.perf_counter() + TIMEOUT
    seconds_spent = time.perf_counter() - recorder.zero
    while out and time.perf_counter() < until:  # noqa: ASYNC110 - a counter
        await asyncio.sleep(0.01)
    load = recorder.end()
    load.seconds = seconds_spent
    for connection in everyone:
        connection.transport.close()
    return load


async def ask(port: int, *requests: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Sends requests one by one and returns status, headers and body of each answer."""
    answers: list[tuple[int, dict[str, str], bytes]] = []
    got = asyncio.Event()

    def answered(connection: Connection, status: int | None, body: bytes) -> None:
        answers.append((status or 0, dict(connection.headers), body))
        got.set()

    connection = await connect(port, answered)
    connection.keep = True
    for data in requests:
        got.clear()
        connection.send(data, time.perf_counter())
        await asyncio.wait_for(got.wait(), TIMEOUT)
    connection.transport.close()
    return answers


def forever(requests: Iterable[bytes]) -> Iterator[bytes]:
    return itertools.cycle(list(requests))
