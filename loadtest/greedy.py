"""Latency of other requests while 18 clients list 10,000 domains all the time."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np

from loadtest import servers, texts
from loadtest.client import closed_loop, request
from loadtest.many import COUNT, multiply
from loadtest.setup import Line, Result, Setup, run

CLIENTS = 18
PAIRS = 60
CONNECTIONS = 4  # connections of the client whose latency is measured


@contextlib.contextmanager
def listing(port: int, taken: list[float]) -> Iterator[None]:
    """Runs clients that list all models until the block ends; appends the seconds of each answer to `taken`."""
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
            while not stop.is_set():
                began = time.perf_counter()
                client.get("/v1/models").raise_for_status()
                taken.append(time.perf_counter() - began)

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        stop.set()
        for client in clients:
            client.join()


def measure(setup: Setup) -> Result:
    stream = itertools.cycle([request("/similarity", texts.body_of(setup.pairs[:PAIRS]))])
    with servers.own_store(setup.store, setup.fp32) as store:
        multiply(store, COUNT, "default")
        with servers.isosim(store, setup.fp32) as server:
            run(closed_loop(server.port, stream, CONNECTIONS, 1.0))  # fills the cache
            alone, beside, listed = [], [], list[float]()
            for _ in range(setup.rounds):
                alone.append(run(closed_loop(server.port, stream, CONNECTIONS, setup.seconds)))
                with listing(server.port, listed):
                    time.sleep(1)
                    beside.append(run(closed_loop(server.port, stream, CONNECTIONS, setup.seconds)))
    return {
        "domains": COUNT,
        "clients": CLIENTS,
        "alone": [load.summary() for load in alone],
        "beside": [load.summary() for load in beside],
        "listing_seconds": {"p50": float(np.median(listed)), "fastest": min(listed)},
    }


def lines(result: Result) -> list[Line]:
    alone = float(np.median([load["p99_ms"] for load in result["alone"]]))
    beside = float(np.median([load["p99_ms"] for load in result["beside"]]))
    return [
        Line("p99 of 60 cached pairs while 18 clients list 10,000 domains", beside, 250, at_most=True, unit=" ms"),
        Line("the same / p99 of these pairs alone", beside / alone, 10, at_most=True),
    ]
