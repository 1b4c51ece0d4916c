"""Half an hour of mixed load, to find resources that leak and requests that become slower.

Runs API, worker and Redis as in production. Twelve users send requests of all kinds, with pauses, and a domain is
calibrated each minute. Measures memory, file descriptors, threads, tasks and Redis connections every ten seconds.
"""

import asyncio
import itertools
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import orjson
import uvloop
from redis import Redis

from loadtest import servers
from loadtest.client import Load, closed_loop, request
from loadtest.measuring import Line, Result, Setup
from loadtest.servers import Server

MINUTES = 30.0
LOOK = 10.0  # s between measurements
USERS, PAUSE = 6, 0.5  # users of /similarity, and as many of the other routes; s that they wait at most
CALIBRATE = 60.0  # s between calibrations
FRESH = 0.3  # share of texts that are not cached
WARM = 0.1  # share of the run that is ignored at its beginning, while caches fill and code is loaded
METRICS = {
    "resident": "process_resident_memory_bytes", "descriptors": "process_open_fds", "tasks": "isosim_event_loop_tasks",
}  # fmt: skip


def requests(setup: Setup, seed: int, paths: tuple[str, ...]) -> Iterator[bytes]:
    """Requests with 1 to 8 texts, some repeated and some new, to each path in turn."""
    rng = random.Random(seed)  # noqa: S311 - a load
    known = [text for pair in setup.pairs[:1000] for text in pair]
    for path in itertools.cycle(paths):
        chosen = rng.choices(known, k=rng.randint(1, 8))
        texts = [f"{text} {rng.randrange(10**9)}" if rng.random() < FRESH else text for text in chosen]
        bodies = {
            "/similarity": {"pairs": [(texts[0], text) for text in texts]},
            "/embed": {"inputs": texts},
            "/rerank": {"query": texts[0], "texts": texts},
            "/v1/embeddings": {"input": texts, "model": "isosim/default"},
        }
        yield request(path, orjson.dumps(bodies[path])) if path in bodies else request(path, method="GET")


def calibrate(server: Server, sentences: list[str], ended: threading.Event) -> int:
    """Calibrates one of four domains, again and again. Returns how often; a calibration that fails is raised."""
    number = 0
    while not number or not ended.wait(CALIBRATE):
        number += 1
        server.calibrate(f"load-{number % 4}", random.sample(sentences, 600))
    return number


def look(server: Server, redis: Redis, began: float) -> dict[str, float]:
    text = httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=30).text
    clients: Any = redis.info("clients")
    found = {name: re.search(rf"^{metric} (\S+)$", text, re.MULTILINE) for name, metric in METRICS.items()}
    return {
        "at": round(time.monotonic() - began, 1),
        **{name: float(value[1]) if value else float("nan") for name, value in found.items()},
        "threads": len(list(Path(f"/proc/{server.pid}/task").iterdir())),
        "redis_connections": float(clients["connected_clients"]),
    }


def measure(setup: Setup) -> Result:
    seconds, ended = 60 * (setup.minutes or MINUTES), threading.Event()
    settings: dict[str, Any] = {"memory_cache_bytes": 2**22, "local_worker": False}
    others = ("/embed", "/rerank", "/v1/embeddings", "/domains/default/threshold?fmr=0.01")
    with (
        servers.own_store(setup.store, setup.encoder) as store,
        servers.redis() as url,
        servers.isosim(store, setup.encoder, redis_url=url, **settings) as server,
        servers.worker(store, url),
        Redis.from_url(url) as redis,
        ThreadPoolExecutor() as pool,
    ):
        began = time.monotonic()

        async def load() -> list[Load]:
            streams = requests(setup, 0, ("/similarity",)), requests(setup, 1, others)
            return await asyncio.gather(*(closed_loop(server.port, one, USERS, seconds, PAUSE) for one in streams))

        calibrating = pool.submit(calibrate, server, setup.sentences_of("imdb-reviews"), ended)
        looks = [look(server, redis, began)]  # before the load's connections are open
        running = pool.submit(uvloop.run, load())
        try:
            while not running.done():
                time.sleep(LOOK)
                looks.append(look(server, redis, began))
        finally:
            ended.set()
        scoring, rest = running.result()
        calibrations = calibrating.result()
        time.sleep(5)  # time for the load's connections to close
        at, took = np.array(scoring.ended)[scoring.where()], 1e3 * scoring.latencies()
        parts = {start: took[(at >= start) & (at < start + LOOK)] for start in np.arange(0, seconds, LOOK)}
        return {
            "seconds": seconds, "looks": looks, "rest": look(server, redis, began), "calibrations": calibrations,
            "requests": len(scoring.statuses) + len(rest.statuses), "failures": scoring.failed + rest.failed,
            "latency": [  # rows (s since the start, p50, p99) of /similarity; p50 and p99 (ms) cover ten seconds
                (start, *np.percentile(part, [50, 99]).tolist()) for start, part in parts.items() if len(part)
            ],
        }  # fmt: skip


def lines(result: Result) -> list[Line]:
    looks, seconds = result["looks"], result["seconds"]

    def thirds(of: Any, values: list[tuple[float, float]]) -> tuple[float, float]:
        """`of` the values in the first and in the last third of the run, without the warm-up."""
        span = (1 - WARM) * seconds / 3
        starts = WARM * seconds, seconds - span
        early, late = (of([value for at, value in values if start <= at < start + span]) for start in starts)
        return early, late

    series = {name: [(one["at"], one[name]) for one in looks] for name in looks[0]}
    resident, tasks = thirds(median, series["resident"]), thirds(median, series["tasks"])
    p99 = thirds(median, [(at, high) for at, _, high in result["latency"]])
    # Redis connections are subtracted, because they are compared by themselves.
    first, rest = (one["descriptors"] - one["redis_connections"] for one in (looks[0], result["rest"]))
    found = [
        Line("failed requests", result["failures"], 0, at_most=True),
        Line("resident memory, last third / first", resident[1] / resident[0], 1.05, at_most=True),
        Line("p99 of /similarity, last third / first", p99[1] / p99[0], 1.25, at_most=True),
        Line("tasks: median, last third minus first", tasks[1] - tasks[0], 2, at_most=True),
        Line("other descriptors: after the load minus at its start", rest - first, 4, at_most=True),
    ]
    for name in ("descriptors", "threads", "redis_connections"):
        early, late = thirds(max, series[name])
        what = f"{name.replace('_', ' ')}: maximum, last third minus first"
        found.append(Line(what, late - early, 2, at_most=True))
    return found
