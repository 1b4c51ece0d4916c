"""Compares latency with and without a running calibration. The two measurements alternate."""

import itertools
import time

import numpy as np

from isosim.arrays import Doubles
from loadtest import servers, texts
from loadtest.measuring import UNCACHED, Line, Result, Setup, drive

LOADS = {"one connection": 1, "4 connections": 4, "16 connections": 16}
SENTENCES = 10_000


def measure(setup: Setup) -> Result:
    body = {"domain": "bench", "texts": setup.sentences_of("reuters-news", SENTENCES), "promote": "never"}
    stream = itertools.cycle(texts.in_requests(setup.pairs))
    loads: dict[str, list[Doubles]] = {f"{name}, {when}": [] for name in LOADS for when in ("without", "during")}
    states: list[object] = []
    with servers.own_isosim(setup.store, setup.encoder, **UNCACHED) as server:
        for _ in range(setup.rounds):
            for name, connections in LOADS.items():
                loads[f"{name}, without"].append(drive(server, stream, connections, setup.seconds).latencies())
            job = server.ask("POST", "/calibrate", body)["job"]
            time.sleep(4)  # waits until the calibration has imported its packages
            for name, connections in LOADS.items():
                loads[f"{name}, during"].append(drive(server, stream, connections, setup.seconds).latencies())
                state = server.ask("GET", f"/calibrate/{job}")
                states.append([name, state["status"], state.get("stage"), state.get("progress")])
            if state["status"] in {"queued", "running"}:
                server.ask("DELETE", f"/calibrate/{job}")
            server.ended(job)
    p99 = {name: float(np.percentile(np.concatenate(found), 99) * 1e3) for name, found in loads.items()}
    ratios = {name: round(p99[f"{name}, during"] / p99[f"{name}, without"], 3) for name in LOADS}
    return {"p99_ms": p99, "p99_ratios": ratios, "job_while_measuring": states}


def lines(result: Result) -> list[Line]:
    return [
        Line(f"p99 with a calibration running / without, {name}", ratio, 1.5, at_most=True)
        for name, ratio in result["p99_ratios"].items()
    ]
