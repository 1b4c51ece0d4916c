"""How long requests keep the server from answering, and whether cached scoring needs the store.

Bodies that are allowed and bodies that are refused arrive on all routes at once: hostile JSON of the largest size, and
100 MB of text, NDJSON, labels, tables, vectors and archives. Meanwhile a process of its own asks /livez every 10 ms.

Then the store hangs: another process holds the lock of a domain, or the bucket is stopped (SIGSTOP).
"""

import contextlib
import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median

import numpy as np
import orjson

from isosim.store.blobs import opened
from loadtest import bucket, hostile, servers
from loadtest.bodies import DIMENSIONS, Body, large_bodies, small_bodies, vector_bodies
from loadtest.setup import Line, Result, Setup

STEP = 0.01  # s between two questions of the probe
SENDERS = 8  # connections that send JSON; each large body has a connection of its own
STUCK = 16  # clients that wait for the store
ASKED = 50  # requests for scores while the store hangs
PAUSE = 0.3  # s between them, so that they go on beyond the deadline of calls of the store


def probe(port: int) -> None:
    """Asks /livez until standard input ends, then prints the seconds that each answer took."""
    ended = threading.Event()

    def until_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_end, daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    took = []
    print("ready", flush=True)
    while not ended.wait(STEP):
        began = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        took.append(time.perf_counter() - began)
    print(json.dumps(took))


def longest(port: int, bodies: list[Body]) -> Result:
    """Sends bodies at once; the large ones each on a connection of its own, the others on SENDERS."""
    statuses: dict[str, int] = {}
    waiting: SimpleQueue[Body] = SimpleQueue()
    large = [body for body in bodies if body.content_type != hostile.JSON]
    for body in bodies:
        if body not in large:
            waiting.put(body)

    def send(body: Body) -> None:
        statuses[body.name] = body.send(port)

    def send_waiting() -> None:
        with contextlib.suppress(Empty):
            while True:
                send(waiting.get_nowait())

    threads = [threading.Thread(target=send, args=(body,)) for body in large]
    threads += [threading.Thread(target=send_waiting) for _ in range(SENDERS)]
    command = [sys.executable, "-m", "loadtest.stall", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=servers.ROOT) as child:  # noqa: S603
        assert child.stdout is not None  # noqa: S101 - a pipe
        child.stdout.readline()
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        time.sleep(0.5)  # until the server is idle
        took = np.array(json.loads(child.communicate()[0])) * 1e3
    counts = {str(status): count for status, count in sorted(Counter(statuses.values()).items())}
    return {
        "longest_ms": float(took.max()), "p99_ms": float(np.percentile(took, 99)), "probes": len(took),
        "bodies": len(bodies), "megabytes": sum(body.size for body in bodies) / 1e6,
        "seconds": seconds, "statuses": counts, "server_errors": sum(status >= 500 for status in statuses.values()),
    }  # fmt: skip


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Holds the lock of the domain `default`, as a process that stops while it changes the domain does."""
    with (store / "domains" / ".default.json.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def while_stuck(
    port: int, hanging: AbstractContextManager[None], stuck: Callable[[int], tuple[str, str, bytes]]
) -> Result:
    """Seconds of cached scoring of 100 texts while STUCK clients repeat a request that waits for the store."""
    ended = threading.Event()

    def ask(method: str, path: str, body: bytes) -> tuple[int, float]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=150)
        began = time.perf_counter()
        connection.request(method, path, body, {"content-type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        return status, time.perf_counter() - began

    def wait(number: int) -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                statuses.append(ask(*stuck(number))[0])

    statuses: list[int] = []  # of the clients that wait
    texts = orjson.dumps({"query": "a dog", "texts": [f"text number {number}" for number in range(100)]})
    for _ in range(2):
        ask("POST", "/rerank", texts)  # fills the cache
    with hanging:
        for number in range(STUCK):
            threading.Thread(target=wait, args=(number,), daemon=True).start()
        answers = []
        for _ in range(ASKED):
            time.sleep(PAUSE)
            answers.append(ask("POST", "/rerank", texts))
        probes = [ask("GET", path, b"") for path in ("/livez", "/readyz", "/metrics")]
        ended.set()
    took = [seconds for _, seconds in answers]
    counts = dict(Counter(map(str, statuses)))
    failed = sum(status != 200 for status, _ in answers + probes)
    return {
        "longest_s": max(took), "median_s": median(took), "failed": failed, "waiting": counts,
        "probes_s": [seconds for _, seconds in probes],
    }  # fmt: skip


def copied(folder: Path, root: Path) -> None:
    """The encoders of a folder, into a bucket."""
    source, target = opened(folder), opened(root)
    for entry in source.list("encoders/"):
        target.upload(entry.key, folder / entry.key)


def stuck_scoring(setup: Setup, stack: ExitStack) -> Result:
    """Cached scoring while the store hangs: a folder whose lock another process holds, and a stopped bucket."""
    fmr = orjson.dumps({"fmr": 0.01})

    def change(number: int) -> tuple[str, str, bytes]:
        return "PUT", f"/domains/default/thresholds/t{number}", fmr

    folder = stack.enter_context(servers.own_store(setup.store, setup.fp32))
    with servers.isosim(folder, setup.fp32) as server:
        in_folder = while_stuck(server.port, locked(folder), change)
    store = stack.enter_context(bucket.bucket())
    copied(folder, store.root)
    with servers.isosim(store.root, setup.fp32) as server:
        in_bucket = while_stuck(server.port, stopped(store.pid), change)
    return {"folder": in_folder, "bucket": in_bucket}


def measure(setup: Setup) -> Result:
    small, large = list(small_bodies()), list(large_bodies())
    found: Result = {"texts": [], "vectors": []}
    with ExitStack() as stack:
        folder = stack.enter_context(servers.own_store(setup.store, setup.fp32))
        add = [sys.executable, "-m", "isosim.cli", "encoder", "add", "mine", "--dimensions", str(DIMENSIONS)]
        subprocess.run([*add, "--model-store", str(folder)], check=True, cwd=servers.ROOT)  # noqa: S603
        for name, encoder, bodies in (("texts", setup.fp32, small + large), ("vectors", "mine", list(vector_bodies()))):
            for _ in range(setup.rounds):  # a server for each round, since jobs of an earlier one would still run
                with servers.isosim(folder, encoder) as server:
                    found[name].append(longest(server.port, bodies))
        return found | {"stuck": stuck_scoring(setup, stack)}


def lines(result: Result) -> list[Line]:
    made = []
    for name in ("texts", "vectors"):
        times = [one["longest_ms"] for one in result[name]]
        errors = sum(one["server_errors"] for one in result[name])
        made += [
            Line(
                f"{name}: longest /livez while bodies of all kinds arrive", median(times), 100, at_most=True, unit=" ms"
            ),
            Line(f"{name}: the same, worst round", max(times), 200, at_most=True, unit=" ms"),
            Line(f"{name}: answers of 500 and above", errors, 0, at_most=True),
        ]
    for name, found in result["stuck"].items():
        what = f"cached scoring of 100 texts while the {name} hangs"
        made += [
            Line(f"{what}, slowest", found["longest_s"], 1, at_most=True, unit=" s"),
            Line(f"{what}, or probes: failed", found["failed"], 0, at_most=True),
        ]
    return made


if __name__ == "__main__":
    probe(int(sys.argv[1]))
