"""Host cost: processor time of the API process per pair, without the encoder's computation.

The host cost determines how many cores a GPU needs. The encoder waits instead of computing (waiting_encoder.py). For
comparison, each round also measures a bare FastAPI route.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

from loadtest import servers, texts
from loadtest.client import request
from loadtest.servers import Server
from loadtest.setup import Line, Result, Setup, drive

CONNECTIONS = 64
CACHED = 1000  # pairs that are sent repeatedly
GPU_BATCHES: dict[str, Any] = {"runs": 1, "max_batch_tokens": 16384}


def new_pairs(pairs: list[texts.Pair]) -> Iterator[bytes]:
    """Requests with one pair each. No text is cached, because each text ends with a new number."""
    for number, (a, b) in enumerate(itertools.cycle(pairs)):
        yield request("/similarity", texts.body_of([(f"{a} {number}", f"{b} {number}")]))


def cost(server: Server, requests: Iterator[bytes], seconds: float) -> tuple[float, float]:
    """Processor seconds per request, and requests/s."""
    drive(server.port, requests, CONNECTIONS, 1.0, warm=0.0)
    before = server.processor_seconds()
    load = drive(server.port, requests, CONNECTIONS, seconds, warm=0.0)
    return (server.processor_seconds() - before) / len(load.statuses), load.rate


def measure(setup: Setup) -> Result:
    costs: dict[str, list[float]] = {"bare route": [], "uncached": [], "cached": []}
    rates: dict[str, list[float]] = {name: [] for name in costs}
    again = texts.single_pairs(setup.pairs[:CACHED])
    with ExitStack() as stack:
        bare = stack.enter_context(servers.bare_route())
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        service = stack.enter_context(servers.isosim(store, setup.fp32, "loadtest.waiting_encoder", **GPU_BATCHES))
        drive(service.port, iter(again), 4, 60.0, warm=0.0)
        new = new_pairs(setup.pairs)
        for _ in range(setup.rounds):
            for name, server, other, requests in (
                ("bare route", bare, service, itertools.cycle(again)),
                ("uncached", service, bare, new),
                ("cached", service, bare, itertools.cycle(again)),
            ):
                with servers.paused([other]):
                    spent, rate = cost(server, requests, setup.seconds)
                costs[name].append(spent)
                rates[name].append(rate)
    ratios = {
        name: [round(own / bare, 3) for own, bare in zip(costs[name], costs["bare route"], strict=True)]
        for name in ("uncached", "cached")
    }
    return {
        "microseconds": {n: [round(1e6 * c, 1) for c in all_] for n, all_ in costs.items()},
        "rates": rates,
        "ratios": ratios,
    }


def lines(result: Result) -> list[Line]:
    uncached, cached = (median(result["ratios"][name]) for name in ("uncached", "cached"))
    spent = median(result["microseconds"]["uncached"])
    return [
        Line("host cost of an uncached pair / processor time of a bare FastAPI request", uncached, 2.5, at_most=True),
        Line("host cost of a cached pair / the same", cached, 1.25, at_most=True, note="cost at 0.8 of the bare rate"),
        Line("host cost of an uncached pair", spent, 1000, at_most=True, unit=" µs", note="no bar"),
    ]
