"""How long bodies of all kinds keep the server from answering.

Bodies that are allowed and bodies that are refused arrive on all routes at once: hostile JSON of the largest size, and
100 MB of text, NDJSON, labels, tables, vectors and archives. Then, by themselves, requests
with large answers. Meanwhile a process of its own asks /livez every 10 ms.
"""

import http.client
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from loadtest import bodies, servers
from loadtest.bodies import Body
from loadtest.measuring import Line, Result, Setup

STEP = 0.01  # s between two questions of the probe
SENDERS = 8  # connections that send JSON; each large body has a connection of its own


def probe(port: int, pipe: Connection) -> None:
    """Asks /livez until something is sent to it, then sends the seconds that each answer took."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    took: list[float] = []
    pipe.send("ready")
    while not pipe.poll(STEP):
        began = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        took.append(time.perf_counter() - began)
    pipe.send(took)


def longest(port: int, large: list[Body], small: list[Body]) -> Result:
    """Sends bodies at once; the large ones each on a connection of its own, the small ones on SENDERS."""
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=probe, args=(port, there), daemon=True).start()
    there.close()
    here.recv()
    began = time.monotonic()
    with ThreadPoolExecutor(len(large)) as each, ThreadPoolExecutor(SENDERS) as few:
        sent = [each.submit(body.send, port) for body in large] + [few.submit(body.send, port) for body in small]
        statuses = [one.result() for one in sent]
    seconds = time.monotonic() - began
    time.sleep(0.5)  # until the server is idle
    here.send("end")
    took = np.array(here.recv()) * 1e3
    return {
        "longest_ms": float(took.max()), "p99_ms": float(np.percentile(took, 99)), "probes": len(took),
        "bodies": len(sent), "megabytes": sum(body.size for body in large + small) / 1e6, "seconds": seconds,
        "statuses": {str(status): count for status, count in sorted(Counter(statuses).items())},
        "server_errors": sum(status >= 500 for status in statuses),
    }  # fmt: skip


def measure(setup: Setup) -> Result:
    kinds: dict[str, tuple[str, list[Body], list[Body]]] = {
        "texts": (setup.encoder, list(bodies.large_bodies()), list(bodies.small_bodies())),
        "vectors": ("mine", list(bodies.vector_bodies()), []),
        "answers": (setup.encoder, list(bodies.asking_bodies()), []),
    }
    found: Result = {name: [] for name in kinds}
    with servers.own_store(setup.store, setup.encoder) as folder:
        add = ["encoder", "add", "mine", "--dimensions", str(bodies.DIMENSIONS), "--model-store", str(folder)]
        subprocess.run([sys.executable, "-m", "isosim.cli", *add], check=True, cwd=servers.ROOT)  # noqa: S603
        for name, (encoder, large, small) in kinds.items():
            for _ in range(setup.rounds):  # a server for each round, since jobs of an earlier one would still run
                with servers.isosim(folder, encoder) as server:
                    if name == "answers":
                        large[0].send(server.port)  # later ones take the vectors from the cache
                    found[name].append(longest(server.port, large, small))
    return found


def lines(result: Result) -> list[Line]:
    made = []
    for name, rounds in result.items():
        times = [one["longest_ms"] for one in rounds]
        errors = sum(one["server_errors"] for one in rounds)
        what = f"{name}: longest /livez while bodies of all kinds arrive"
        made += [
            Line(what, median(times), 100, at_most=True, unit=" ms"),
            Line(f"{name}: the same, worst round", max(times), 200, at_most=True, unit=" ms"),
            Line(f"{name}: answers of 500 and above", errors, 0, at_most=True),
        ]
    return made
