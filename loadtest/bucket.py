"""Requests of a cluster to its bucket: 50 API processes poll 10,000 domains, and 100 workers send heartbeats.

Counts the requests of three tasks: polling the store, sending heartbeats of 100 running jobs, and counting the jobs.
Then computes requests per second and cost per month, for the default intervals.

The bucket is a moto server in its own process, which counts the requests by kind. Only the first domain is published.
The other domains are copies of its objects. All 50 API processes are simulated in one process, each with a store and a
registry of its own, because the machine has two cores.

For each listing, moto would read all keys of the bucket. Here, moto's listing is replaced by a search in sorted keys.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from isosim.domains.calibrations import StoredCalibrations
from isosim.domains.champions import Champions
from isosim.domains.changes import FULL_LOOK
from isosim.domains.domain import Version
from isosim.domains.registry import Registry
from isosim.domains.store import DomainStore, written
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Spool
from isosim.jobs.store import Attempt, JobStore
from isosim.scoring.calibration import DEFAULT, Calibration, DomainModel, DomainRef
from isosim.server.store_watch import DISTANT_COUNT_SECONDS, DISTANT_SWEEP_SECONDS, LIST_SECONDS, POLL_SECONDS
from isosim.store.artifacts import MANIFEST
from isosim.store.blobs import opened
from isosim.worker.supervisor import DISTANT_HEARTBEAT
from loadtest.servers import free_port
from loadtest.setup import Line, Result, Setup

DOMAINS, WATCHERS, WORKERS = 10_000, 50, 100
RESIDENT = 10  # domains that each API process has loaded, besides `default`
LOOKS = 1000  # number of polls for the measurement of a watcher's memory
COUNTING = 5  # number of simulated API processes that count the jobs
BUCKET, ENCODER = "store", "a" * 64
MONTH = 30.4 * 86_400  # s
# Price in $ per 1,000 requests, of S3 in us-east-1.
PRICES = {"LIST": 0.005, "PUT": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}

MOTO = """
import bisect, collections, json, sys
from moto.s3.models import S3Backend, s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

counts, names, changed = collections.Counter(), [], True
listed = S3Backend.list_objects


class Part:  # of a bucket: the keys that begin with a prefix
    def __init__(self, keys):
        self.keys = keys


def list_objects(self, bucket, prefix, delimiter, marker, max_keys):
    global names, changed
    if changed:
        changed = False  # first: what is written from here on sets it again
        names = sorted(bucket.keys)
    found, keys = names, {}
    for name in found[bisect.bisect_left(found, prefix or ""):]:
        if not name.startswith(prefix or ""):
            break
        if name in bucket.keys:
            keys[name] = bucket.keys[name]
    return listed(self, Part(keys), prefix, delimiter, marker, max_keys)


S3Backend.list_objects = list_objects
moto = DomainDispatcherApplication(create_backend_app)


def kind(method, query):
    if "list-type" in query:
        return "LIST"
    return "DELETE" if method == "POST" and "delete" in query else method


def app(environ, start):
    global changed
    path = environ["PATH_INFO"]
    if path == "/-/counts":
        start("200 OK", [])
        return [json.dumps(counts).encode()]
    if path == "/-/fill":  # keys and values, without a request each
        backend = s3_backends["123456789012"]["aws"]
        for key, value in json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))).items():
            backend.put_object("store", key, value.encode())
        changed = True
        start("200 OK", [])
        return [b""]
    counts[kind(environ["REQUEST_METHOD"], environ["QUERY_STRING"])] += 1
    answer = moto(environ, start)
    changed = changed or environ["REQUEST_METHOD"] not in ("GET", "HEAD")
    return answer


run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=len(sys.argv) > 2)
"""


class Bucket:
    """The root of a store in an empty bucket. The bucket counts requests."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.root, self.pid = url, Path(f"s3://{BUCKET}/team"), pid

    def counts(self) -> Counter[str]:
        return Counter(httpx.get(f"{self.url}/-/counts", timeout=60).json())

    def fill(self, objects: dict[str, bytes]) -> None:
        values = {f"team/{key}": value.decode() for key, value in objects.items()}
        httpx.post(f"{self.url}/-/fill", json=values, timeout=600).raise_for_status()


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Runs a bucket in its own process until the block ends. AWS's environment variables point to the bucket."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    given = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    given["AWS_DEFAULT_REGION"] = "us-east-1"
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-c", MOTO, str(port), "threaded"]
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603
    try:
        until = time.monotonic() + 120
        while True:
            try:
                httpx.put(f"{url}/{BUCKET}", timeout=10).raise_for_status()
                break
            except httpx.TransportError:
                if time.monotonic() > until or child.poll() is not None:
                    raise
                time.sleep(0.2)
        yield Bucket(url, child.pid)
    finally:
        child.terminate()
        child.wait(20)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def published(store: DomainStore, name: str) -> int:
    """Publishes a version of a domain as its champion; returns its number."""
    version = Version(0, ENCODER, "tiny", "identity", {}, "", "", sentences=2)
    with written({}, None, DomainModel()) as folder:
        return store.publish(name, folder, version, promote=lambda _: True).number


def filled(place: Bucket, count: int) -> DomainStore:
    """A store of domains d0, d1, …, each with a champion and the same files."""
    store = DomainStore(opened(place.root))
    published(store, "d0")
    record, *files = store.keys("d0", 1)
    manifest = files[0].rpartition("/")[0] + f"/{MANIFEST}"
    contents = {key: store.blobs.read(key)[0] for key in (record, manifest, *files)}
    objects: dict[str, bytes] = {}
    for name in (f"d{number}" for number in range(1, count)):
        for key, content in contents.items():
            objects[key.replace("/d0", f"/{name}", 1)] = content.replace(b'"d0"', f'"{name}"'.encode())
    place.fill(objects)
    return store


class Watcher:
    """Polls a store as an API process does."""

    def __init__(self, root: Path) -> None:
        # (domain, version) -> time (s, monotonic) at which this watcher began to serve the version
        self.seen: dict[tuple[str, int], float] = {}
        source = StoredCalibrations(DomainStore(opened(root)))
        calibrator: Any = object()  # not used, because versions of the method `identity` have no weights
        source.calibrators[ENCODER] = calibrator
        self.registry = Registry(source, ENCODER, on_champion=self._see)

    def _see(self, calibration: Calibration) -> None:
        self.seen[calibration.domain, calibration.version] = time.monotonic()

    async def load(self, count: int) -> None:
        for number in range(count):
            await self.registry.resolve(DomainRef(f"d{number}"))

    async def run(self, pause: float) -> None:
        while True:
            await self.registry.refresh()
            await asyncio.sleep(pause)


async def watched(place: Bucket, watchers: list[Watcher], looks: int) -> Counter[str]:
    """Polls `looks` times with each watcher; returns the number of requests by kind."""
    before = place.counts()
    for _ in range(looks):
        await asyncio.gather(*(watcher.registry.refresh() for watcher in watchers))
    return place.counts() - before


async def full_look(place: Bucket, store: DomainStore) -> Counter[str]:
    """Number of requests by kind that compare all loaded domains with the store (every FULL_LOOK seconds)."""
    before = place.counts()
    names = [DEFAULT, *(f"d{number}" for number in range(RESIDENT))]
    await asyncio.to_thread(store.read_each, names, store.stamp)
    return place.counts() - before


def running_jobs(root: Path, count: int) -> list[Attempt]:
    """Running jobs, each begun by a worker of its own."""
    found = []
    for number in range(count):
        jobs, request = JobStore(opened(root)), JobRequest(f"d{number}", ENCODER, "tiny", "identity", "never")
        with Spool() as spool:
            spool.extend(["A sentence."])
            jobs.create(request, spool, [])
        attempt = jobs.claim(f"worker-{number}")
        assert attempt is not None  # noqa: S101 - it was just posted
        found.append(attempt)
    return found


def beat(attempt: Attempt) -> None:
    attempt.beat("embedding", 0.5)


def of_jobs(place: Bucket, running: list[Attempt]) -> dict[str, Counter[str]]:
    """Number of requests by kind: for a heartbeat of each job, for COUNTING counts of the jobs, and for COUNTING
    removals of old records."""
    before = place.counts()
    for attempt in running:
        beat(attempt)
    beats = place.counts() - before
    counting = [JobStore(opened(place.root)) for _ in range(COUNTING)]
    before = place.counts()
    for jobs in counting:
        assert len(jobs.newest()) == len(running)  # noqa: S101 - all of them run
    counts = place.counts() - before
    before = place.counts()
    for jobs in counting:
        jobs.sweep()
    return {"heartbeats": beats, "counts of jobs": counts, "sweeps of jobs": place.counts() - before}


async def heartbeats(running: list[Attempt]) -> None:
    """Replaces each job's record every DISTANT_HEARTBEAT seconds, one job after another at equal intervals."""
    for number in itertools.count():
        began = time.monotonic()
        await asyncio.to_thread(beat, running[number % len(running)])
        await asyncio.sleep(max(0.0, DISTANT_HEARTBEAT / len(running) - (time.monotonic() - began)))


async def seen_after(
    store: DomainStore,
    running: list[Attempt],
    watchers: list[Watcher],
    pause: float,
    times: int,
) -> list[float]:
    """Seconds from each promotion until each watcher serves the new version, sorted."""
    tasks = [asyncio.create_task(watcher.run(pause)) for watcher in watchers]
    tasks.append(asyncio.create_task(heartbeats(running)))
    taken: list[float] = []
    try:
        for domain in (f"d{number}" for number in range(times)):
            version = await asyncio.to_thread(published, store, domain)
            answered = time.monotonic()
            async with asyncio.timeout(120):
                while not all((domain, version) in watcher.seen for watcher in watchers):  # noqa: ASYNC110 - it polls
                    await asyncio.sleep(0.02)
            taken += [watcher.seen[domain, version] - answered for watcher in watchers]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(taken)


def resident() -> int:
    """Resident bytes of this process."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def a_month(rates: Mapping[str, float]) -> float:
    """Cost ($) per month of requests, from the requests per second of each kind."""
    return sum(PRICES[kind] / 1000 * rate * MONTH for kind, rate in rates.items())


async def measured(place: Bucket) -> Result:
    store = filled(place, DOMAINS)
    pause = POLL_SECONDS
    watchers = [Watcher(place.root) for _ in range(WATCHERS)]
    for watcher in watchers:  # one by one, because moto needs seconds for a listing
        await watcher.registry.refresh()
        await watcher.load(RESIDENT)
    running = await asyncio.to_thread(running_jobs, place.root, WORKERS)
    jobs = await asyncio.to_thread(of_jobs, place, running)
    full = await full_look(place, store)
    await watched(place, watchers, 2)
    looks = await watched(place, watchers, 5)
    each = {kind: count / (5 * WATCHERS) for kind, count in looks.items() if kind != "PUT"}
    delays = await seen_after(store, running, watchers, pause, 5)
    few = await seen_after(store, running, watchers[:5], pause, 10)
    one = watchers[0]
    await watched(place, [one], 100)
    before = resident()
    await watched(place, [one], LOOKS)
    grown = resident() - before
    rates = {kind: count * WATCHERS / pause for kind, count in each.items()}
    for kind, count in full.items():
        rates[kind] = rates.get(kind, 0.0) + count * WATCHERS / FULL_LOOK
    beats = {kind: count / DISTANT_HEARTBEAT for kind, count in jobs["heartbeats"].items()}
    counts: Counter[str] = Counter()
    for what, pause_of in (("counts of jobs", DISTANT_COUNT_SECONDS), ("sweeps of jobs", DISTANT_SWEEP_SECONDS)):
        for kind, count in jobs[what].items():
            counts[kind] += count / COUNTING * WATCHERS / pause_of  # type: ignore[assignment]
    champions, listings_of = Champions(store), []
    for _ in range(2):
        counted = place.counts()
        await asyncio.to_thread(champions.read)
        listings_of.append(place.counts() - counted)
    first, again = listings_of
    listings = {kind: count * WATCHERS / LIST_SECONDS for kind, count in again.items()}
    return {
        "domains": DOMAINS, "watchers": WATCHERS, "workers": WORKERS, "poll_seconds": pause,
        "requests_a_look": each, "requests_a_full_look": dict(full),
        "requests_of_100_heartbeats": dict(jobs["heartbeats"]),
        "requests_of_a_count_of_jobs": {kind: count / COUNTING for kind, count in jobs["counts of jobs"].items()},
        "requests_of_a_sweep_of_jobs": {kind: count / COUNTING for kind, count in jobs["sweeps of jobs"].items()},
        "requests_of_a_first_listing": dict(first),
        "requests_of_a_listing": dict(again),
        "requests_a_second": {"looks": rates, "heartbeats": beats, "jobs": counts, "listings": listings},
        "dollars_a_month": {
            "looks": round(a_month(rates), 2),
            "heartbeats": round(a_month(beats), 2),
            "jobs": round(a_month(counts), 2),
            "listings": round(a_month(listings), 2),
        },
        "seen_seconds": {"50": percentiles(delays), "5": percentiles(few)},
        "memory_of_1000_looks": grown,
    }  # fmt: skip


def percentiles(taken: list[float]) -> dict[str, float]:
    return {"p50": round(float(np.median(taken)), 2), "max": round(taken[-1], 2)}


def measure(setup: Setup) -> Result:
    with bucket() as place:
        return asyncio.run(measured(place))


def lines(result: Result) -> list[Line]:
    seen = result["seen_seconds"]
    return [
        Line("promotion seen by 50 API processes, 10,000 domains", seen["50"]["max"], 2.0, at_most=True, unit=" s"),
        Line("the same, 5 API processes", seen["5"]["max"], 2.0, at_most=True, unit=" s"),
        Line(
            "$ a month of 50 API processes and 100 workers", sum(result["dollars_a_month"].values()), 618, at_most=True
        ),
        Line(
            "requests of a listing of 10,000 domains", sum(result["requests_of_a_listing"].values()), 10, at_most=True
        ),
        Line("requests of a look", sum(result["requests_a_look"].values()), 1.0, at_most=True),
        Line("memory of 1,000 looks", result["memory_of_1000_looks"] / 1e6, 5.0, at_most=True, unit=" MB"),
    ]
