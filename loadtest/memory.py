"""Measures the start time of the service, and its memory during mixed load."""

import itertools
import random
import time
from contextlib import ExitStack
from statistics import median

from loadtest import servers, texts
from loadtest.client import request
from loadtest.setup import Line, Result, Setup, drive

STARTS = 5
CHUNK = 15.0  # seconds between measurements of memory


def mixed(setup: Setup) -> list[bytes]:
    """Requests with one short pair, one long pair, and 32 pairs, alternating."""
    rng = random.Random(0)  # noqa: S311 - a sample
    long = texts.mixed_lengths(setup.data, (rng.choice((16, 64, 256)) for _ in iter(int, 1)), 600)
    pairs = list(zip(long[::2], long[1::2], strict=True))
    few = texts.single_pairs(setup.pairs)
    batches = [request("/similarity", texts.body_of(setup.pairs[i : i + 32])) for i in range(0, 8000, 32)]
    return [one for trio in zip(few, texts.single_pairs(pairs) * 30, batches * 40, strict=False) for one in trio]


def measure(setup: Setup) -> Result:
    ready = []
    for _ in range(STARTS):
        with servers.own_store(setup.store, setup.fp32) as store, servers.isosim(store, setup.fp32) as server:
            ready.append(round(server.ready, 2))
            started = server.resident()
    resident: list[tuple[float, int]] = []
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        server = stack.enter_context(servers.isosim(store, setup.fp32))
        stream = itertools.cycle(mixed(setup))
        began = time.monotonic()
        while (now := time.monotonic() - began) < setup.soak:
            drive(server.port, stream, 16, min(CHUNK, setup.soak - now), warm=0.0)
            resident.append((round(time.monotonic() - began, 1), server.resident()))
    return {"ready_seconds": ready, "resident_started": started, "resident": resident}


def lines(result: Result) -> list[Line]:
    resident = result["resident"]
    second = next((size for at, size in resident if at >= 120), resident[0][1])
    minutes = resident[-1][0] / 60
    return [
        Line("ready after the start of the process", median(result["ready_seconds"]), 3.0, at_most=True, unit=" s"),
        Line("resident after mixed load", resident[-1][1] / 2**20, 450, at_most=True, unit=" MiB"),
        Line(f"resident after {minutes:.0f} minutes / after 2 minutes", resident[-1][1] / second, 1.05, at_most=True),
    ]
