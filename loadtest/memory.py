"""Time to start, memory during ten minutes of mixed load, and memory of a loaded domain."""

import itertools
import random
import time
from statistics import median

from loadtest import servers, texts
from loadtest.measuring import UNCACHED, Line, Result, Setup, drive, fill

STARTS = 5
CHUNK = 15.0  # seconds between measurements of memory
MINUTES = 10.0
DOMAINS = 1000


def mixed(setup: Setup) -> list[bytes]:
    """Requests with one short pair, one long pair, and 32 pairs, alternating."""
    rng = random.Random(0)  # noqa: S311 - a sample
    long = texts.pairs_of_length(setup.data, (rng.choice((16, 64, 256)) for _ in iter(int, 1)), 300)
    kinds = (texts.in_requests(setup.pairs), texts.in_requests(long) * 30, texts.in_requests(setup.pairs, 32) * 40)
    return [one for trio in zip(*kinds, strict=False) for one in trio]


def of_domains(setup: Setup) -> Result:
    """Resident bytes with one calibrated domain, and with DOMAINS copies of it, each of them loaded."""
    found = {}
    with servers.own_store(setup.store, setup.encoder) as store:
        with servers.isosim(store, setup.encoder) as server:
            server.calibrate("d0", setup.sentences_of("imdb-reviews", 3000), "whitening")
        for count in (1, DOMAINS):
            servers.multiply(store, count)
            with servers.isosim(store, setup.encoder, **UNCACHED, resident_bytes=2**32) as server:
                pairs = enumerate(setup.pairs[: 2 * count])
                fill(server, [one for at, pair in pairs for one in texts.in_requests([pair], 1, f"d{at % count}")])
                found[count] = server.resident()
    return {"resident": found, "bytes_a_domain": round((found[DOMAINS] - found[1]) / (DOMAINS - 1))}


def measure(setup: Setup) -> Result:
    ready = []
    for _ in range(STARTS):
        with servers.own_isosim(setup.store, setup.encoder) as server:
            ready.append(round(server.ready, 2))
            started = server.resident()
    resident: list[tuple[float, int]] = []
    with servers.own_isosim(setup.store, setup.encoder) as server:
        stream, seconds = itertools.cycle(mixed(setup)), 60 * (setup.minutes or MINUTES)
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            drive(server, stream, 16, min(CHUNK, seconds - now), warm=0.0)
            resident.append((round(time.monotonic() - began, 1), server.resident()))
    return {
        "ready_seconds": ready, "resident_started": started, "resident": resident, "domains": of_domains(setup)
    }  # fmt: skip


def lines(result: Result) -> list[Line]:
    resident = result["resident"]
    second = next((size for at, size in resident if at >= 120), resident[0][1])
    minutes, domain = resident[-1][0] / 60, result["domains"]["bytes_a_domain"]
    return [
        Line("ready after the start of the process", median(result["ready_seconds"]), 3.0, at_most=True, unit=" s"),
        Line("resident after mixed load", resident[-1][1] / 2**20, 450, at_most=True, unit=" MiB"),
        Line(f"resident after {minutes:.0f} minutes / after 2 minutes", resident[-1][1] / second, 1.05, at_most=True),
        Line("memory a loaded domain", domain / 1e6, 2.0, at_most=True, unit=" MB"),
    ]
