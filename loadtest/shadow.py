"""Cost of shadow scoring: rates and latencies without a migration, and with 0 %, 10 % and 100 % of requests shadowed.

The server does the same work with 0 % as without a migration. Any difference in the results is measurement noise.
"""

import itertools
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import orjson

from loadtest import servers, texts
from loadtest.client import Load, ask, open_loop, request
from loadtest.domains import fitted
from loadtest.servers import Server
from loadtest.setup import UNCACHED, Line, Result, Setup, drive, run

DOMAIN, NEXT = "moved", "next"
PATH = f"/domains/{DOMAIN}/migration"
SHARES = (0.0, 0.1, 1.0)  # shares of shadowed requests
NONE = -1.0  # no migration
CLOSED = {"one connection": 1, "16 connections": 16}
# Loads with random arrivals: name -> rate. 1.0 is the rate that 16 connections reach.
OPEN = {"30 % of the capacity": 0.3, "60 % of the capacity": 0.6}
LOADS = (*CLOSED, *OPEN)


class Phase(NamedTuple):
    """Measurements with one number of connections and one share of shadowed requests."""

    load: Load
    scored: int  # requests that the new encoder scored
    dropped: int


def two_encoders(setup: Setup, store: Path) -> None:
    """Calibrates a domain for the encoder, and for an equally fast encoder with the same weights and other pooling."""
    words = ["export", "--encoder", setup.fp32, "--pooling", "cls", "--id", NEXT, "--model-store", str(store)]
    subprocess.run([sys.executable, "-m", "isosim.cli", *words], check=True, capture_output=True)  # noqa: S603
    for encoder in (setup.fp32, NEXT):
        fitted(setup, store, DOMAIN, encoder)


def told(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    ((status, _, answer),) = run(ask(port, request(path, body, method)))
    if status not in {200, 201, 204}:
        raise RuntimeError(f"{method} {path}: {status}: {answer[:300]!r}")
    return answer


def counts(port: int) -> tuple[int, int]:
    """Pairs scored by the new encoder, and dropped requests, since the server's start."""
    said = told(port, "GET", "/metrics").decode()
    scored = re.findall(r"^isosim_shadow_percentile_difference_count\{.*\} (\S+)", said, re.MULTILINE)
    dropped = re.findall(r"^isosim_shadow_dropped_total\{.*\} (\S+)", said, re.MULTILINE)
    return int(sum(map(float, scored))), int(sum(map(float, dropped)))


def measured(server: Server, load: Load, before: tuple[int, int]) -> Phase:
    scored, dropped = (now - then for now, then in zip(counts(server.port), before, strict=True))
    return Phase(load, scored, dropped)


def measure(setup: Setup) -> Result:
    stream = itertools.cycle(texts.single_pairs(setup.pairs, DOMAIN))
    found: dict[str, dict[float, list[Phase]]] = {name: {share: [] for share in (NONE, *SHARES)} for name in LOADS}
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        two_encoders(setup, store)
        server = stack.enter_context(servers.isosim(store, setup.fp32, next_encoder=NEXT, **UNCACHED))
        capacity = drive(server.port, stream, 16, setup.seconds).rate
        for turn in range(setup.rounds):
            shares = [NONE, *SHARES]
            shares = shares[turn % 4 :] + shares[: turn % 4]  # rotates the order: each round begins with another share
            for name, share in itertools.product(LOADS, shares):
                if share >= 0:
                    told(server.port, "POST", PATH, orjson.dumps({"shadow": share}))
                before = counts(server.port)
                if name in CLOSED:
                    load = drive(server.port, stream, CLOSED[name], setup.seconds)
                else:
                    load = run(open_loop(server.port, stream, OPEN[name] * capacity, setup.seconds))
                found[name][share].append(measured(server, load, before))
                if share >= 0:
                    told(server.port, "DELETE", PATH)
    return {"capacity": round(capacity, 1)} | {name: summary(phases) for name, phases in found.items()}


def summary(phases: dict[float, list[Phase]]) -> Result:
    """For each share: latencies over all rounds, ratios to the results without a migration, and counts."""
    latencies = {
        share: np.concatenate([one.load.latencies() for one in every]) * 1e3 for share, every in phases.items()
    }
    rows: Result = {}
    for share, every in phases.items():
        p50, p99 = np.percentile(latencies[share], [50, 99])
        base50, base99 = np.percentile(latencies[NONE], [50, 99])
        rates = [one.load.rate / other.load.rate for one, other in zip(every, phases[NONE], strict=True)]
        rows["none" if share < 0 else f"{share:g}"] = {
            "p50_ms": round(float(p50), 2),
            "p99_ms": round(float(p99), 2),
            "p50_ratio": round(float(p50 / base50), 3),
            "p99_ratio": round(float(p99 / base99), 3),
            "rate_ratio": round(median(rates), 3),
            "scored": sum(one.scored for one in every),
            "dropped": sum(one.dropped for one in every),
            "requests": len(latencies[share]),
        }
    return rows


def lines(result: Result) -> list[Line]:
    tails = [
        Line(
            f"p99 with every request shadowed / none shadowed, {name}",
            result[name]["1"]["p99_ratio"],
            1.5,
            at_most=True,
        )
        for name in LOADS
    ]
    full = result["16 connections"]["1"]["rate_ratio"]
    return [*tails, Line("every request shadowed / none shadowed, pairs/s at 16 connections", full, 0.9)]
