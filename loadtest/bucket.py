"""Requests of a cluster to its bucket: 50 API processes poll 10,000 domains, and 100 workers send heartbeats.

The bucket is moto's, in a process that counts requests by kind. One domain is published through the adapter, and copied
to 10,000 directly. An API process polls its registry and its migrations once per `ISOSIM_POLL_SECONDS`, here with the
real adapters in one process for all 50, because the machine has two cores. The requests per poll are counted, and rate
and cost are computed for that interval. A worker with a job sends one PUT every two seconds.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from loadtest.servers import free_port
from loadtest.setup import Line, Result, Setup
from service.adapters.domains.calibrations import FULL_LOOK, StoredCalibrations
from service.adapters.domains.migrations import MigrationStore
from service.adapters.domains.objects import ALIASES, MANIFESTS
from service.adapters.domains.store import DomainStore
from service.adapters.storage.artifacts import manifest_bytes
from service.core.scoring.calibration import Calibration, DomainModel, DomainRef
from service.core.scoring.registry import Registry
from service.settings import Settings

DOMAINS, WATCHERS, WORKERS = 10_000, 50, 100
RESIDENT = 10  # domains that each API process has loaded
LOOKS = 1000  # polls of one watcher, to measure its memory
HEARTBEAT = 2.0  # s between a job's heartbeats
BUCKET, ENCODER = "store", "a" * 64
MONTH = 30.4 * 86_400  # s
PRICES = {"LIST": 0.005, "PUT": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}  # $ for 1,000; S3 in us-east-1
FORMER = {"LIST": 1, "GET": 1}  # requests per poll before the store had a change counter ("bell"), measured then
FORMER_FULL = {"LIST": DOMAINS // 1000}  # requests per full comparison then: pages of all aliases

MOTO = """
import collections, json, sys
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

counts = collections.Counter()
moto = DomainDispatcherApplication(create_backend_app)


def kind(method, query):
    if "list-type" in query:
        return "LIST"
    return "DELETE" if method == "POST" and "delete" in query else method


def app(environ, start):
    path = environ["PATH_INFO"]
    if path == "/-/counts":
        start("200 OK", [])
        return [json.dumps(counts).encode()]
    if path == "/-/fill":  # keys and values, without a request each
        backend = s3_backends["123456789012"]["aws"]
        for key, value in json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))).items():
            backend.put_object("store", key, value.encode())
        start("200 OK", [])
        return [b""]
    counts[kind(environ["REQUEST_METHOD"], environ["QUERY_STRING"])] += 1
    return moto(environ, start)


run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=len(sys.argv) > 2)
"""


class Bucket:
    """A store's root in an empty bucket, with request counts."""

    def __init__(self, url: str) -> None:
        self.url, self.root = url, Path(f"s3://{BUCKET}/team")

    def counts(self) -> Counter[str]:
        return Counter(httpx.get(f"{self.url}/-/counts", timeout=60).json())

    def fill(self, objects: dict[str, bytes]) -> None:
        values = {f"team/{key}": value.decode() for key, value in objects.items()}
        httpx.post(f"{self.url}/-/fill", json=values, timeout=600).raise_for_status()


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Runs a bucket in a process until the block ends, with AWS's environment variables pointing to it."""
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
        yield Bucket(url)
    finally:
        child.terminate()
        child.wait(20)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def filled(place: Bucket, count: int) -> DomainStore:
    """A store of domains d0, d1, …, each with a champion and the same files."""
    store = DomainStore(place.root)
    facts = {"method": "identity", "encoder": {"id": "tiny", "digest": ENCODER}}
    store.publish("d0", facts, {}, None, DomainModel())
    store.promote("d0", ENCODER, 1, expected=store.aliases("d0", ENCODER))
    manifest, files = store.contents("d0", 1)
    aliases = store.storage.aliases("d0").content
    assert aliases is not None  # noqa: S101 - it was just promoted
    objects: dict[str, bytes] = {}
    for name in (f"d{number}" for number in range(1, count)):
        objects[f"{MANIFESTS}{name}!1"] = manifest_bytes(manifest | {"domain": name})
        objects[ALIASES + name] = aliases
        objects |= {f"domains/files/{name}/{manifest['upload']}/{file}": content for file, content in files.items()}
    place.fill(objects)
    return store


class Watcher:
    """Polls a store as an API process does."""

    def __init__(self, root: Path) -> None:
        self.seen: dict[tuple[str, int], float] = {}  # s, monotonic, by domain and version
        calibrator: Any = None  # identity has no weights to bind
        self.registry = Registry(
            StoredCalibrations(DomainStore(root), calibrator, ENCODER), ENCODER, on_champion=self._see
        )
        self.migrations = MigrationStore(root)

    def _see(self, calibration: Calibration) -> None:
        self.seen[calibration.domain, calibration.version] = time.monotonic()

    async def load(self, count: int) -> None:
        for number in range(count):
            await self.registry.resolve(DomainRef(f"d{number}"))

    async def look(self) -> None:
        """Polls once, as `Encoders.refresh` does."""
        await self.registry.refresh()
        await asyncio.to_thread(self.migrations.all)

    async def run(self, pause: float) -> None:
        while True:
            await self.look()
            await asyncio.sleep(pause)


async def watched(place: Bucket, watchers: list[Watcher], looks: int) -> Counter[str]:
    """Requests of the given number of polls of each watcher."""
    before = place.counts()
    for _ in range(looks):
        await asyncio.gather(*(watcher.look() for watcher in watchers))
    return place.counts() - before


async def full_look(place: Bucket, store: DomainStore) -> Counter[str]:
    """Additional requests every FULL_LOOK seconds, when all loaded domains are compared with the store."""
    before = place.counts()
    await asyncio.to_thread(store.stamps, {f"d{number}": frozenset({1}) for number in range(RESIDENT)})
    return place.counts() - before


async def heartbeats(store: DomainStore, workers: int) -> None:
    """Replaces the record of each running job every two seconds, spread evenly over that time."""
    storage: Any = store.storage
    number = 0
    while True:
        began = time.monotonic()
        await asyncio.to_thread(storage.storage.write, f"jobs/{number % workers}", b"{}")
        number += 1
        await asyncio.sleep(max(0.0, HEARTBEAT / workers - (time.monotonic() - began)))


async def seen_after(
    place: Bucket, store: DomainStore, watchers: list[Watcher], pause: float, times: int
) -> list[float]:
    """Sorted seconds from a promotion until each watcher serves the new version."""
    tasks = [asyncio.create_task(watcher.run(pause)) for watcher in watchers]
    tasks.append(asyncio.create_task(heartbeats(store, WORKERS)))
    taken: list[float] = []
    try:
        for domain in (f"d{number}" for number in range(times)):
            facts = {"method": "identity", "encoder": {"id": "tiny", "digest": ENCODER}}
            version = await asyncio.to_thread(store.publish, domain, facts, {}, None, DomainModel())
            aliases = await asyncio.to_thread(store.aliases, domain, ENCODER)
            await asyncio.to_thread(lambda d, v, a: store.promote(d, ENCODER, v, expected=a), domain, version, aliases)
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


def a_month(rates: dict[str, float]) -> float:
    """Cost per month in $ of requests per second, by kind."""
    return sum(PRICES[kind] / 1000 * rate * MONTH for kind, rate in rates.items())


async def measured(place: Bucket) -> Result:
    store = filled(place, DOMAINS)
    pause: float = Settings.model_fields["poll_seconds"].default
    watchers = [Watcher(place.root) for _ in range(WATCHERS)]
    for watcher in watchers:  # one by one, because a listing takes moto seconds
        await watcher.look()
        await watcher.load(RESIDENT)
    full = await full_look(place, store)
    await watched(place, watchers, 2)
    looks = await watched(place, watchers, 5)
    each = {kind: count / (5 * WATCHERS) for kind, count in looks.items() if kind != "PUT"}
    delays = await seen_after(place, store, watchers, pause, 5)
    few = await seen_after(place, store, watchers[:5], pause, 10)
    one = watchers[0]
    await watched(place, [one], 100)
    before = resident()
    await watched(place, [one], LOOKS)
    grown = resident() - before
    rates = {kind: count * WATCHERS / pause for kind, count in each.items()}
    for kind, count in full.items():
        rates[kind] = rates.get(kind, 0.0) + count * WATCHERS / FULL_LOOK
    rates["PUT"] = WORKERS / HEARTBEAT
    former = {kind: count * WATCHERS / pause for kind, count in FORMER.items()}
    former["LIST"] += FORMER_FULL["LIST"] * WATCHERS / FULL_LOOK
    return {
        "domains": DOMAINS, "watchers": WATCHERS, "workers": WORKERS, "poll_seconds": pause,
        "requests_a_look": each, "requests_a_full_look": dict(full), "requests_a_second": rates,
        "dollars_a_month": {
            "looks": round(a_month({k: v for k, v in rates.items() if k != "PUT"}), 2),
            "looks before the bell": round(a_month(former), 2),
            "heartbeats": round(a_month({"PUT": rates["PUT"]}), 2),
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
        Line("requests of a look", sum(result["requests_a_look"].values()), 2.0, at_most=True),
        Line("memory of 1,000 looks", result["memory_of_1000_looks"] / 1e6, 5.0, at_most=True, unit=" MB"),
    ]
