"""Failures and latency while champions are replaced under load."""

import asyncio
import itertools
import time

import numpy as np
import uvloop

from loadtest import servers, texts
from loadtest.client import Load, closed_loop
from loadtest.measuring import UNCACHED, Line, Result, Setup, fill
from loadtest.servers import Server

CONNECTIONS = 16
SWAPS = 6
EVERY = 3.0  # s between swaps


def swap_repeatedly(server: Server) -> list[float]:
    """Swaps the champion. Returns when it sent each request (s, `perf_counter`)."""
    times = []
    for number in range(SWAPS):
        time.sleep(EVERY)
        times.append(time.perf_counter())
        server.ask("PUT", "/domains/swapped/champion", {"version": 1 + number % 2})
    return times


async def both(server: Server, requests: list[bytes]) -> tuple[Load, list[float]]:
    load = closed_loop(server.port, itertools.cycle(requests), CONNECTIONS, (SWAPS + 1) * EVERY)
    return await asyncio.gather(load, asyncio.to_thread(swap_repeatedly, server))


def measure(setup: Setup) -> Result:
    found: Result = {}
    requests = texts.in_requests(setup.pairs[:2000], domain="swapped")
    sentences = setup.sentences_of("imdb-reviews", 1500)
    for cache, settings in {"cached": {}, "uncached": UNCACHED}.items():
        with servers.own_isosim(setup.store, setup.encoder, **settings) as server:
            for method in ("whitening", "identity"):
                server.calibrate("swapped", sentences, method)
            fill(server, requests)
            load, times = uvloop.run(both(server, requests))
        latencies, answered = load.latencies(), np.array(load.ended)[load.where()] + load.zero
        # True for requests that ended less than 1 s after a swap.
        inside = np.logical_or.reduce([(answered >= at) & (answered < at + 1) for at in times])
        found[cache] = {
            "p99_outside_ms": float(np.percentile(latencies[~inside], 99) * 1e3),
            "p999_inside_ms": float(np.percentile(latencies[inside], 99.9) * 1e3),
            "worst_inside_ms": float(latencies[inside].max() * 1e3), "requests_inside": int(inside.sum()),
            "failed": load.failed, "load": load.summary(),
        }  # fmt: skip
    return found


def lines(result: Result) -> list[Line]:
    made = []
    for cache, found in result.items():
        ratio = found["p999_inside_ms"] / found["p99_outside_ms"]
        made += [
            Line(f"{cache}: requests failed during swaps", found["failed"], 0, at_most=True),
            Line(f"{cache}: p99.9 in the second after a swap / p99 at other times", ratio, 3.0, at_most=True),
        ]
    return made
