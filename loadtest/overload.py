"""Latency of accepted and refused requests at four times the capacity. The client does not wait for answers."""

import itertools
from statistics import median

import uvloop

from loadtest import servers, texts
from loadtest.client import open_loop
from loadtest.measuring import UNCACHED, Line, Result, Setup, drive

TIMES = 4.0


def measure(setup: Setup) -> Result:
    stream = itertools.cycle(texts.in_requests(setup.pairs))
    rounds = []
    with servers.own_isosim(setup.store, setup.encoder, **UNCACHED) as server:
        for _ in range(setup.rounds):
            capacity = drive(server, stream, 64, setup.seconds)
            before = server.resident()
            over = uvloop.run(open_loop(server.port, stream, TIMES * capacity.rate, 2 * setup.seconds))
            other = sum(status not in {200, 429} for status in over.statuses) + over.failures
            rounds.append({
                "capacity": capacity.summary(), "overloaded": over.summary(), "accepted_p99_ms": over.percentile(99),
                "refused_p99_ms": over.percentile(99, 429), "refused_worst_ms": over.percentile(100, 429),
                "without_retry_after": over.without_retry_after, "other_answers": other,
                "resident_before": before, "resident_after": server.resident(),
            })  # fmt: skip
    return {"rounds": rounds}


def lines(result: Result) -> list[Line]:
    rounds, last = result["rounds"], result["rounds"][-1]
    slower = median(one["accepted_p99_ms"] / one["capacity"]["p99_ms"] for one in rounds)
    refused = median(one["refused_p99_ms"] for one in rounds)
    wrong = sum(one["other_answers"] + one["without_retry_after"] for one in rounds)
    grown = last["resident_after"] / last["resident_before"]
    return [
        Line("overloaded: p99 of accepted requests / p99 at capacity (64 connections)", slower, 2.0, at_most=True),
        Line("overloaded: refused, p99", refused, 50, at_most=True, unit=" ms"),
        Line("overloaded: answers that are neither 200 nor 429, or lack Retry-After", wrong, 0, at_most=True),
        Line("overloaded: resident memory after / before, last round", grown, 1.05, at_most=True),
    ]
