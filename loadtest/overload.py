"""Latency of accepted and refused requests at four times the capacity. The client does not wait for answers."""

import itertools
from statistics import median

import numpy as np

from loadtest import servers, texts
from loadtest.client import open_loop
from loadtest.setup import UNCACHED, Line, Result, Setup, drive, run

TIMES = 4.0


def measure(setup: Setup) -> Result:
    stream = itertools.cycle(texts.single_pairs(setup.pairs))
    rounds = []
    with servers.own_store(setup.store, setup.fp32) as store, servers.isosim(store, setup.fp32, **UNCACHED) as server:
        for _ in range(setup.rounds):
            capacity = drive(server.port, stream, 64, setup.seconds)
            at_capacity = run(open_loop(server.port, stream, capacity.rate, setup.seconds))
            before = server.resident()
            over = run(open_loop(server.port, stream, TIMES * capacity.rate, 2 * setup.seconds))
            refused = over.latencies(lambda status: status == 429)
            accepted = over.latencies()
            rounds.append(
                {
                    "capacity": capacity.summary(),
                    "open_loop_at_capacity": at_capacity.summary(),
                    "overloaded": over.summary(),
                    "accepted_p99_ms": float(np.percentile(accepted, 99) * 1e3),
                    "refused_p99_ms": float(np.percentile(refused, 99) * 1e3),
                    "refused_worst_ms": float(refused.max() * 1e3),
                    "without_retry_after": over.without_retry_after,
                    "other_answers": sum(status not in {200, 429} for status in over.statuses) + over.failures,
                    "resident_before": before,
                    "resident_after": server.resident(),
                }
            )
    return {"rounds": rounds}


def lines(result: Result) -> list[Line]:
    rounds = result["rounds"]

    def middle(values: list[float]) -> float:
        return float(median(values))

    return [
        Line(
            "overloaded: p99 of accepted requests / p99 at capacity (64 connections)",
            middle([r["accepted_p99_ms"] / r["capacity"]["p99_ms"] for r in rounds]), 2.0, at_most=True,
        ),
        Line("overloaded: refused, p99", middle([r["refused_p99_ms"] for r in rounds]), 50, at_most=True, unit=" ms"),
        Line(
            "overloaded: answers that are neither 200 nor 429, or lack Retry-After",
            sum(r["other_answers"] + r["without_retry_after"] for r in rounds), 0, at_most=True,
        ),
        Line(
            "overloaded: resident memory after / before, last round",
            rounds[-1]["resident_after"] / rounds[-1]["resident_before"], 1.05, at_most=True,
        ),
    ]  # fmt: skip
