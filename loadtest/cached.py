"""Compares cached requests with a route that computes nothing. Measures a cache in memory and one only in Redis."""

import itertools
from contextlib import ExitStack
from statistics import median

from loadtest import servers, texts
from loadtest.setup import Line, Result, Setup, drive

CONNECTIONS = 16
PAIRS = 1000  # pairs that are sent repeatedly


def measure(setup: Setup) -> Result:
    requests = texts.single_pairs(setup.pairs[:PAIRS])
    rates: dict[str, list[float]] = {}
    summaries: dict[str, object] = {}
    with ExitStack() as stack:
        url = stack.enter_context(servers.redis())
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        other = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        everyone = {
            "bare route": stack.enter_context(servers.bare_route()),
            "memory": stack.enter_context(servers.isosim(store, setup.fp32)),
            "redis": stack.enter_context(servers.isosim(other, setup.fp32, memory_cache_bytes=0, redis_url=url)),
        }
        for name in ("memory", "redis"):  # fills the caches
            drive(everyone[name].port, iter(requests), 4, 60.0, warm=0.0)
        for _ in range(setup.rounds):
            for name, server in everyone.items():
                with servers.paused([other for other in everyone.values() if other is not server]):
                    load = drive(server.port, itertools.cycle(requests), CONNECTIONS, setup.seconds)
                rates.setdefault(name, []).append(load.rate)
                summaries[name] = load.summary()
    ratios = {
        f"{name} / bare route": [round(a / b, 3) for a, b in zip(rates[name], rates["bare route"], strict=True)]
        for name in ("memory", "redis")
    }
    return {"rates": rates, "ratios": ratios, "last_round": summaries}


def lines(result: Result) -> list[Line]:
    ratios = result["ratios"]
    memory = median(ratios["memory / bare route"])
    return [
        Line("cached in memory / bare FastAPI route, pairs/s at 16 connections", memory, 0.8),
        Line("cached in Redis alone / bare FastAPI route", median(ratios["redis / bare route"]), 0.4),
    ]
