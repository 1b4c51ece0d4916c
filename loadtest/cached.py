"""Compares cached requests with a route that computes nothing. Measures a cache in memory and one only in Redis."""

import itertools
from statistics import median

from loadtest import servers, texts
from loadtest.host import BARE, CACHED
from loadtest.measuring import UNCACHED, Line, Result, Setup, divided, each_round, fill, in_turn

CONNECTIONS = 16


def measure(setup: Setup) -> Result:
    requests = texts.in_requests(setup.pairs[:CACHED])
    with (
        servers.redis() as url,
        servers.bare_route() as bare,
        servers.own_isosim(setup.store, setup.encoder) as memory,
        servers.own_isosim(setup.store, setup.encoder, redis_url=url, **UNCACHED) as redis,
    ):
        everyone = {BARE: bare, "memory": memory, "redis": redis}
        for server in (memory, redis):
            fill(server, requests)
        contestants = {name: (server, itertools.cycle(requests)) for name, server in everyone.items()}
        rounds = [in_turn(contestants, CONNECTIONS, setup.seconds) for _ in range(setup.rounds)]
    rates = each_round(rounds, lambda load: load.rate)
    return {
        "rates": rates,
        "ratios": {f"{name} / {BARE}": divided(rates[name], rates[BARE]) for name in ("memory", "redis")},
        "last_round": {name: load.summary() for name, load in rounds[-1].items()},
    }


def lines(result: Result) -> list[Line]:
    memory, redis = (median(result["ratios"][f"{name} / {BARE}"]) for name in ("memory", "redis"))
    return [
        Line("cached in memory / bare FastAPI route, pairs/s at 16 connections", memory, 0.8),
        Line("cached in Redis alone / bare FastAPI route", redis, 0.4),
    ]
