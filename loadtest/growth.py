"""Throughput by number of pairs per request, and by number of cached texts."""

import itertools
from contextlib import ExitStack

from loadtest import servers, texts
from loadtest.client import request
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

PAIRS = (1, 4, 16, 64, 256, 512)
LONGEST = 300.0  # maximum seconds of one measurement
CACHED = (100, 1_000, 10_000, 30_000)  # texts


def batches(pairs: list[texts.Pair], size: int) -> list[bytes]:
    return [request("/similarity", texts.body_of(pairs[i : i + size])) for i in range(0, len(pairs) - size + 1, size)]


def measure(setup: Setup) -> Result:
    found: Result = {"pairs": {}, "cached": {}}
    for name, encoder in setup.encoders.items():
        with ExitStack() as stack:
            store = stack.enter_context(servers.own_store(setup.store, encoder))
            # With this `max_wait`, the server refuses no request. Refusals would distort the measurement.
            server = stack.enter_context(servers.isosim(store, encoder, **UNCACHED, max_wait=600))
            for number, size in enumerate(PAIRS):
                some = setup.pairs[number * 1024 : (number + 1) * 1024]  # new pairs for each size
                connections = max(1, 64 // size)  # about 64 pairs at a time keep both cores busy
                load = drive(server.port, iter(batches(some, size)), min(connections, 16), LONGEST, warm=0.0)
                found["pairs"].setdefault(name, {})[size] = size * load.rate
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        server = stack.enter_context(servers.isosim(store, setup.fp32))
        words = texts.mixed_lengths(setup.data, itertools.repeat(10), CACHED[-1])
        pairs = list(zip(words[::2], words[1::2], strict=True))
        filled = 0
        for size in CACHED:
            fill = batches(pairs[filled : size // 2], 50)
            drive(server.port, iter(fill), 2, LONGEST, warm=0.0)
            filled = size // 2
            load = drive(server.port, itertools.cycle(texts.single_pairs(pairs[:filled])), 16, setup.seconds)
            found["cached"][size] = {"requests_per_second": load.rate, "resident": server.resident()}
    return found


def lines(_: Result) -> list[Line]:
    return []  # no limits; results are in the report
