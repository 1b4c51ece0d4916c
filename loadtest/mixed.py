"""Throughput for texts of 8 to 256 tokens, for one and 32 pairs per request, and with half of the texts cached."""

import itertools
import random
from contextlib import ExitStack

from loadtest import servers, texts
from loadtest.client import request
from loadtest.setup import UNCACHED, Line, Result, Setup, drive

TOKENS = (8, 16, 32, 64, 128, 256)


def measure(setup: Setup) -> Result:
    rng = random.Random(0)  # noqa: S311 - a sample
    lengths = (rng.choice(TOKENS) for _ in iter(int, 1))
    long = texts.mixed_lengths(setup.data, lengths, 2000)
    pairs = list(zip(long[::2], long[1::2], strict=True))
    streams = {
        "8 to 256 tokens, a pair a request, 16 connections": (texts.single_pairs(pairs), 16),
        "8 to 256 tokens, 32 pairs in each request, 4 connections": (
            [request("/similarity", texts.body_of(pairs[i : i + 32])) for i in range(0, len(pairs) - 31, 32)], 4,
        ),
        "STS-B, 32 pairs in each request, 4 connections": (
            [request("/similarity", texts.body_of(setup.pairs[i : i + 32])) for i in range(0, 8000, 32)], 4,
        ),
    }  # fmt: skip
    found: Result = {}
    for name, encoder in setup.encoders.items():
        with ExitStack() as stack:
            store = stack.enter_context(servers.own_store(setup.store, encoder))
            server = stack.enter_context(servers.isosim(store, encoder, **UNCACHED))
            for stream, (requests, connections) in streams.items():
                load = drive(server.port, itertools.cycle(requests), connections, setup.seconds)
                found[f"{name}, {stream}"] = load.summary()
    with ExitStack() as stack:  # every second request has one of 500 cached pairs
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        server = stack.enter_context(servers.isosim(store, setup.fp32))
        known, fresh = texts.single_pairs(setup.pairs[:500]), iter(texts.single_pairs(setup.pairs[500:]))
        drive(server.port, iter(known), 8, 30.0, warm=0.0)
        half = (one for both in zip(itertools.cycle(known), fresh, strict=False) for one in both)
        load = drive(server.port, half, 16, setup.seconds)
        found["fp32, STS-B, half of the requests cached, 16 connections"] = load.summary()
    return found


def lines(_: Result) -> list[Line]:
    return []  # no limits; results are in the report
