"""An HTTP/1.1 client that uses little processor time, so that nearly all is left for the server under test."""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httptools
import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles

TIMEOUT = 60.0  # maximum seconds that a load waits for missing answers
MOST = 2000  # connections of an open loop


def request(path: str, body: bytes = b"", method: str = "POST") -> bytes:
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
    server_cpu: float = 0.0  # processor seconds of the server
    without_retry_after: int = 0  # 429 answers that lack the header
    zero: float = 0.0  # `time.perf_counter` at the start

    def where(self, status: int = 200) -> npt.NDArray[np.bool_]:
        return np.array([one == status for one in self.statuses], bool)

    def latencies(self, status: int = 200) -> Doubles:
        latencies: Doubles = (np.array(self.ended) - np.array(self.started))[self.where(status)]
        return latencies

    @property
    def rate(self) -> float:
        """Answers with status 200 per second."""
        return self.statuses.count(200) / self.seconds

    @property
    def failed(self) -> int:
        """Requests without an answer of status 200."""
        return len(self.statuses) - self.statuses.count(200) + self.failures

    def percentile(self, percent: float, status: int = 200) -> float:
        """A percentile of the latencies (ms)."""
        latencies = self.latencies(status)
        return float(np.percentile(latencies, percent) * 1e3) if len(latencies) else float("nan")

    def summary(self) -> dict[str, Any]:
        percents = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9}
        return {
            "per_second": round(self.rate, 1),
            **{name: round(self.percentile(percent), 3) for name, percent in percents.items()},
            "requests": len(self.statuses),
            "statuses": {str(status): count for status, count in sorted(Counter(self.statuses).items())},
            "failures": self.failures,
            "seconds": round(self.seconds, 2),
            "client_cpu_share": round(self.client_cpu / self.seconds, 3) if self.seconds else 0.0,
        }


class Connection(asyncio.Protocol):
    """Sends one request at a time. Records each answer, or the loss of the connection, and calls `on_answer`."""

    def __init__(self, load: Load, on_answer: Callable[["Connection"], None]) -> None:
        self.load, self.on_answer = load, on_answer
        self.sent_at = 0.0
        self.busy = self.lost = self.retry_after = False
        self.parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: Any) -> None:  # uvloop's transports do not inherit from asyncio's
        self.transport = transport

    def send(self, data: bytes, at: float) -> None:
        self.sent_at, self.busy = at, True
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, _: bytes) -> None:
        self.retry_after = self.retry_after or name.lower() == b"retry-after"

    def on_message_complete(self) -> None:
        load, status = self.load, self.parser.get_status_code()
        load.started.append(self.sent_at - load.zero)
        load.ended.append(time.perf_counter() - load.zero)
        load.statuses.append(status)
        load.without_retry_after += status == 429 and not self.retry_after
        self.busy = self.retry_after = False
        self.parser = httptools.HttpResponseParser(self)
        self.on_answer(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if self.busy:
            self.busy = False
            self.load.failures += 1
            self.on_answer(self)


async def connect(port: int, load: Load, on_answer: Callable[[Connection], None]) -> Connection:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Connection(load, on_answer), "127.0.0.1", port))[1]


@asynccontextmanager
async def connected(
    port: int, load: Load, connections: int, on_answer: Callable[[Connection], None]
) -> AsyncIterator[list[Connection]]:
    """Opens connections, and measures the time of the load until the block ends."""
    everyone = [await connect(port, load, on_answer) for _ in range(connections)]
    load.zero, load.client_cpu = time.perf_counter(), -time.process_time()
    yield everyone
    load.seconds = load.seconds or time.perf_counter() - load.zero
    load.client_cpu += time.process_time()
    for connection in everyone:
        connection.transport.close()


async def closed_loop(port: int, requests: Iterator[bytes], connections: int, seconds: float, pause: float = 0) -> Load:
    """Each connection waits for an answer, and up to `pause` seconds, before its next request."""
    load, running, ended = Load(), connections, asyncio.Event()

    def send_next(connection: Connection) -> None:
        nonlocal running
        now = time.perf_counter()
        data = next(requests, None) if now < load.zero + seconds and not connection.lost else None
        if data is not None:
            connection.send(data, now)
            return
        running -= 1
        if not running:
            ended.set()

    def answered(connection: Connection) -> None:
        if pause:
            asyncio.get_running_loop().call_later(pause * random.random(), send_next, connection)  # noqa: S311
        else:
            send_next(connection)

    async with connected(port, load, connections, answered) as everyone:
        for connection in everyone:
            send_next(connection)
        await asyncio.wait_for(ended.wait(), seconds + TIMEOUT)
    return load


async def open_loop(port: int, requests: Iterator[bytes], rate: float, seconds: float) -> Load:
    """Sends requests at random (Poisson) times, without waiting for answers. Latency counts from the planned time.

    Opens a new connection if none is free. If MOST connections are open, the request is not sent and counts as failed.
    """
    load, out = Load(), 0
    free: deque[Connection] = deque()
    rng = random.Random(0)  # noqa: S311 - arrival times

    def answered(connection: Connection) -> None:
        nonlocal out
        out -= 1
        if not connection.lost:
            free.append(connection)

    async with connected(port, load, 256, answered) as everyone:
        free.extend(everyone)
        planned = load.zero
        while planned < load.zero + seconds:
            planned += rng.expovariate(rate)
            wait = planned - time.perf_counter()
            if wait > 0 or out % 16 == 0:  # if the request is late, processes answers first
                await asyncio.sleep(max(0.0, wait))
            while free and free[0].lost:
                free.popleft()
            if not free and len(everyone) >= MOST:
                load.failures += 1
                continue
            if not free:
                everyone.append(await connect(port, load, answered))
                free.append(everyone[-1])
            out += 1
            free.popleft().send(next(requests), planned)
        load.seconds = time.perf_counter() - load.zero
        while out and time.perf_counter() < load.zero + load.seconds + TIMEOUT:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.01)
    return load
