"""Measures whether `resident_bytes` limits the memory of many domains, with a cache and different texts per domain.

Detects whether cached texts keep the out-of-domain test of their domain in memory. loadtest/many.py cannot detect this,
because it sends the same two texts to every domain, without a cache.
"""

from typing import Any

import httpx

from isosim.encoders.device import GROWTH
from loadtest import servers
from loadtest.many import multiply
from loadtest.servers import Server
from loadtest.setup import Line, Result, Setup

COUNT = 600  # domains; 1.7 MB each
WARM = 20  # requests to `default` before the first measurement
RESIDENT = 50_000_000  # bytes; enough for about 30 domains
SENTENCES = 1200  # enough for an out-of-domain test
# Bytes of other growth: drift windows (28 MB), whitenings in double precision (40 MB), texts, fragmentation.
OTHERS = 110e6


def metric(client: httpx.Client, name: str) -> float:
    """The value of a metric without labels."""
    return next(float(line.split()[1]) for line in client.get("/metrics").text.splitlines() if line.startswith(name))


def connected(server: Server) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60)


def ask(client: httpx.Client, domain: str, number: int) -> None:
    pair = [f"Ticket {number}: the printer is on fire.", f"Number {number} asks for a new invoice."]
    client.post("/similarity", json={"pairs": [pair], "domain": domain}).raise_for_status()


def measure(setup: Setup) -> Result:
    from loadtest.domains import fitted  # noqa: PLC0415 - loaded after loadtest.many, which it imports

    with servers.own_store(setup.store, setup.fp32) as store:
        fitted(setup, store, count=SENTENCES)
        multiply(store, COUNT)
        # As in the container images.
        options: dict[str, Any] = {"environment": {"MALLOC_ARENA_MAX": "2"}, "resident_bytes": RESIDENT}
        with servers.isosim(store, setup.fp32, **options) as server, connected(server) as client:
            for number in range(WARM):
                ask(client, "default", -1 - number)
            before = server.resident()
            resident = []
            for number in range(COUNT):
                ask(client, f"d{number}", number)
                if number % 100 == 99:
                    resident.append(server.resident())
            counted = metric(client, "isosim_resident_calibration_bytes")
            cached = metric(client, "isosim_memory_cache_bytes")
    return {
        "domains": COUNT,
        "resident_bytes_setting": RESIDENT,
        "resident_before": before,
        "resident_each_100": resident,
        "metric": counted,
        "memory_cache": cached,
    }


def lines(result: Result) -> list[Line]:
    grown = result["resident_each_100"][-1] - result["resident_before"]
    last = result["resident_each_100"][-1] / result["resident_each_100"][-3]
    bar = GROWTH * RESIDENT + OTHERS
    return [
        Line(
            "memory that 600 domains add, at most 50 MB of them kept", grown / 1e6, bar / 1e6, at_most=True, unit=" MB"
        ),
        Line("resident memory after 600 domains / after 400", last, 1.1, at_most=True),
        Line("memory of calibrations (metric)", result["metric"] / 1e6, RESIDENT / 1e6, at_most=True, unit=" MB"),
    ]
