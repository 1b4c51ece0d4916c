"""Compares latency with and without a running calibration. The two measurements alternate."""

import itertools
import time
from contextlib import ExitStack
from statistics import median

import numpy as np
import orjson

from loadtest import servers, texts
from loadtest.client import Load, ask, request
from loadtest.setup import UNCACHED, Line, Result, Setup, drive, run

LOADS = {"one connection": 1, "4 connections": 4, "16 connections": 16}
SENTENCES = 10_000


def post(port: int, sentences: list[str]) -> str:
    body = orjson.dumps({"domain": "bench", "texts": sentences, "promote": "never"})
    ((status, _, answer),) = run(ask(port, request("/calibrate", body)))
    if status != 202:
        raise RuntimeError(f"{status}: {answer[:300]!r}")
    return str(orjson.loads(answer)["job"])


def job(port: int, name: str) -> dict[str, object]:
    ((_, _, answer),) = run(ask(port, request(f"/calibrate/{name}", b"", "GET")))
    found: dict[str, object] = orjson.loads(answer)
    return found


def measure(setup: Setup) -> Result:
    sentences = (setup.data / "text" / "reuters-news.txt").read_text().splitlines()[:SENTENCES]
    stream = itertools.cycle(texts.single_pairs(setup.pairs))
    without: dict[str, list[Load]] = {name: [] for name in LOADS}
    during: dict[str, list[Load]] = {name: [] for name in LOADS}
    stages: list[object] = []
    with ExitStack() as stack:
        store = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        server = stack.enter_context(servers.isosim(store, setup.fp32, **UNCACHED))
        for _ in range(setup.rounds):
            for name, connections in LOADS.items():
                without[name].append(drive(server.port, stream, connections, setup.seconds))
            running = post(server.port, sentences)
            time.sleep(4)  # waits until the calibration has imported its packages
            for name, connections in LOADS.items():
                during[name].append(drive(server.port, stream, connections, setup.seconds))
                state = job(server.port, running)
                stages.append([name, state["status"], state.get("stage"), state.get("progress")])
            run(ask(server.port, request(f"/calibrate/{running}", b"", "DELETE")))
            while job(server.port, running)["status"] in {"queued", "running", "publishing"}:
                time.sleep(0.2)

    def tail(loads: list[Load]) -> float:
        return float(np.percentile(np.concatenate([load.latencies() for load in loads]), 99) * 1e3)

    p99 = {name: {"without_ms": tail(without[name]), "during_ms": tail(during[name])} for name in LOADS}
    ratios = {name: round(found["during_ms"] / found["without_ms"], 3) for name, found in p99.items()}
    rates = {
        name: round(median(b.rate / a.rate for a, b in zip(without[name], during[name], strict=True)), 3)
        for name in LOADS
    }
    return {"p99": p99, "p99_ratios": ratios, "rate_ratios": rates, "job_while_measuring": stages}


def lines(result: Result) -> list[Line]:
    return [
        Line(f"p99 with a calibration running / without, {name}", ratio, 1.5, at_most=True)
        for name, ratio in result["p99_ratios"].items()
    ]
