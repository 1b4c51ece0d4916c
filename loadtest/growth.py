"""How cost grows: with the length of texts, with the pairs of a request, with the vectors in the cache."""

import itertools
from contextlib import ExitStack

from loadtest import servers, texts
from loadtest.client import request
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

TOKENS = (8, 16, 32, 64, 128, 256)
PAIRS = (1, 4, 16, 64, 256, 512)
CACHED = (100, 1_000, 10_000, 30_000)  # texts


def batches(pairs: list[texts.Pair], size: int) -> list[bytes]:
    return [request("/similarity", texts.body_of(pairs[i : i + size])) for i in range(0, len(pairs) - size + 1, size)]


def measure(setup: Setup) -> Result:
    found: Result = {"tokens": {}, "pairs": {}, "cached": {}}
    seconds = 2 * setup.seconds  # a window must hold many requests, the largest take seconds
    for name, encoder in setup.encoders.items():
        with ExitStack() as stack:
            store = stack.enter_context(servers.own_store(setup.store, encoder))
            server = stack.enter_context(servers.isosim(store, encoder, **UNCACHED))
            for tokens in TOKENS:
                cut = texts.mixed_lengths(setup.data, itertools.repeat(tokens), 512)
                pairs = list(zip(cut[::2], cut[1::2], strict=True))
                load = drive(server.port, itertools.cycle(batches(pairs, 8)), 4, seconds, warm=0.5)
                found["tokens"].setdefault(name, {})[tokens] = 16 * load.rate
            for size in PAIRS:
                load = drive(server.port, itertools.cycle(batches(setup.pairs, size)), 4, seconds, warm=0.5)
                found["pairs"].setdefault(name, {})[size] = size * load.rate
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        server = stack.enter_context(servers.isosim(store, setup.fp32))
        words = texts.mixed_lengths(setup.data, itertools.repeat(10), CACHED[-1])
        pairs = list(zip(words[::2], words[1::2], strict=True))
        filled = 0
        for size in CACHED:
            fill = batches(pairs[filled : size // 2], 50)
            drive(server.port, iter(fill), 2, 300.0, warm=0.0)
            filled = size // 2
            load = drive(server.port, itertools.cycle(texts.single_pairs(pairs[:filled])), 16, seconds, warm=0.5)
            found["cached"][size] = {"requests_per_second": load.rate, "resident": server.resident()}
    return found


def lines(_: Result) -> list[Line]:
    return []  # no bar; the figures stand in the report
