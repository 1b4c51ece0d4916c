"""Measures a server with 10,000 domains: start, first requests, listings, polling, and memory with `resident_bytes`."""

import os
import random
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import httpx

from loadtest import servers
from loadtest.servers import Server
from loadtest.setup import UNCACHED, Line, Result, Setup

COUNT = 10_000
TOUCHED = 3000  # number of domains that are requested, one after another
RESIDENT = 200_000_000  # bytes; enough for about 125 domains
SETTLED = 500  # after requests to this many domains, memory has reached the limit RESIDENT
IDLE = 10.0  # s
ROOM = 150e6  # bytes for other memory: drift windows (28 MB), metrics, memory that the allocator keeps
PAIR = {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}


def multiply(store: Path, count: int, domain: str = "d0") -> None:
    """Makes domains d1, d2, … that are copies of a domain. Their files are links to its files."""
    records, versions = store / "domains", store / "versions"
    files = [file for file in (versions / domain).rglob("*") if file.is_file()]
    for name in (f"d{number}" for number in range(1, count)):
        record = records / f"{name}.json"
        if record.exists():
            continue
        for file in files:
            link = versions / name / file.relative_to(versions / domain)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, link)
        shutil.copyfile(records / f"{domain}.json", record)


def timed(client: httpx.Client, domains: Iterable[str]) -> list[float]:
    """Sorted times (ms) of one request to each domain."""
    taken = []
    for domain in domains:
        began = time.perf_counter()
        client.post("/similarity", json=PAIR | {"domain": domain}).raise_for_status()
        taken.append(1000 * (time.perf_counter() - began))
    return sorted(taken)


def listing(client: httpx.Client) -> dict[str, float]:
    """Shortest of three times (ms) for each listing."""
    found = {}
    for path in ("/domains", "/domains?limit=50", "/domains?contains=999", "/v1/models"):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            client.get(path).raise_for_status()
            times.append(1000 * (time.perf_counter() - began))
        found[path] = round(min(times), 1)
    return found


def idle(server: Server) -> float:
    """Share of a core that the idle server uses for polling."""
    before = server.processor_seconds()
    time.sleep(IDLE)
    return (server.processor_seconds() - before) / IDLE


def measure(setup: Setup) -> Result:
    from loadtest.domains import fitted  # noqa: PLC0415 - a circular import

    with servers.own_store(setup.store, setup.fp32) as store:
        fitted(setup, store)
        multiply(store, COUNT)
        arenas = {"MALLOC_ARENA_MAX": "2"}  # see docs/how-to/many-domains.md
        with servers.isosim(store, setup.fp32, environment=arenas, resident_bytes=RESIDENT, **UNCACHED) as server:
            names = [f"d{number}" for number in range(COUNT)]
            random.Random(0).shuffle(names)  # noqa: S311
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
                timed(client, ["default"] * 50)
                listed = listing(client)
                empty = server.resident()
                cold = timed(client, names[:SETTLED])
                settled = server.resident()
                cold += timed(client, names[SETTLED:TOUCHED])
                touched = server.resident()
                polling = idle(server)
    cold.sort()
    return {
        "domains": COUNT,
        "ready_seconds": round(server.ready, 2),
        "cold_ms": {"p50": round(cold[len(cold) // 2], 1), "p99": round(cold[int(len(cold) * 0.99)], 1),
                    "max": round(cold[-1], 1)},
        "listing_ms": listed,
        "resident_bytes_setting": RESIDENT,
        "resident": {"none": empty, SETTLED: settled, TOUCHED: touched},
        "polling_share": round(polling, 4),
    }  # fmt: skip


def lines(result: Result) -> list[Line]:
    grown = result["resident"][TOUCHED] - result["resident"]["none"]
    return [
        Line("10,000 domains: start", result["ready_seconds"], 5.0, at_most=True, unit=" s"),
        Line("first request to a cold domain, p99", result["cold_ms"]["p99"], 100.0, at_most=True, unit=" ms"),
        Line("memory above an idle server", grown / 1e6, (RESIDENT + ROOM) / 1e6, at_most=True, unit=" MB"),
        Line("share of a core that an idle server uses", result["polling_share"], 0.05, at_most=True),
    ]
