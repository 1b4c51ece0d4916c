"""Failures and latency while champions are replaced under load."""

import asyncio
import itertools
import time
from contextlib import ExitStack

import numpy as np
import orjson

from loadtest import servers, texts
from loadtest.client import Load, ask, closed_loop, request
from loadtest.setup import UNCACHED, Line, Result, Setup, run

CONNECTIONS = 16
SWAPS = 6
EVERY = 3.0  # s between swaps


def two_versions(port: int, setup: Setup) -> None:
    """Creates a domain with two versions, whitening and identity."""
    sentences = (setup.data / "text" / "imdb-reviews.txt").read_text().splitlines()[:1500]
    for method in ("whitening", "identity"):
        body = orjson.dumps({"domain": "swapped", "texts": sentences, "method": method, "promote": "always"})
        ((status, _, answer),) = run(ask(port, request("/calibrate", body)))
        if status != 202:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
        path = f"/calibrate/{orjson.loads(answer)['job']}"
        while True:
            ((_, _, answer),) = run(ask(port, request(path, b"", "GET")))
            if orjson.loads(answer)["status"] not in {"queued", "running", "publishing"}:
                break
            time.sleep(0.5)


async def swapping(port: int) -> list[float]:
    """Swaps the champion repeatedly. Returns when it sent each request (s, `perf_counter`)."""
    times = []
    for number in range(SWAPS):
        await asyncio.sleep(EVERY)
        times.append(time.perf_counter())
        ((status, _, answer),) = await ask(
            port, request("/domains/swapped/champion", orjson.dumps({"version": 1 + number % 2}), "PUT")
        )
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
    await asyncio.sleep(EVERY)
    return times


def measure(setup: Setup) -> Result:
    found: Result = {}
    requests = texts.single_pairs(setup.pairs[:2000], "swapped")
    for cache, settings in {"cached": {}, "uncached": UNCACHED}.items():
        with ExitStack() as stack:
            store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
            server = stack.enter_context(servers.isosim(store, setup.fp32, **settings))
            two_versions(server.port, setup)

            async def both(port: int) -> tuple[Load, list[float], float]:
                await closed_loop(port, iter(requests), CONNECTIONS, 60.0)  # fills the cache
                began = time.perf_counter()
                load, times = await asyncio.gather(
                    closed_loop(port, itertools.cycle(requests), CONNECTIONS, (SWAPS + 1) * EVERY), swapping(port)
                )
                return load, times, began

            load, times, began = run(both(server.port))
            ended, latencies = np.array(load.ended), load.latencies()
            # True for requests that ended less than 1 s after a swap.
            inside = np.zeros(len(ended), bool)
            for at in times:
                inside |= (ended >= at - began) & (ended < at - began + 1)
            inside = inside[load.where()]
            found[cache] = {
                "p99_outside_ms": float(np.percentile(latencies[~inside], 99) * 1e3),
                "p999_inside_ms": float(np.percentile(latencies[inside], 99.9) * 1e3),
                "worst_inside_ms": float(latencies[inside].max() * 1e3),
                "requests_inside": int(inside.sum()),
                "failed": int((~load.where()).sum()) + load.failures,
                "load": load.summary(),
            }
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
