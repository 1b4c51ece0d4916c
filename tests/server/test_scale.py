"""Requests of API processes and workers to one bucket, and how soon a promotion is seen.

The processes are real ones; the bucket is a folder in memory that counts requests, because no S3 server for tests is
fast enough. `python -m tests.server.test_scale` has 50 API processes, 100 workers, 10,000 domains, and 30 ms a request.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from isosim.domains.champions import Champions
from isosim.domains.registry import Registry, StoredCalibrations
from isosim.domains.store import DomainStore
from isosim.jobs.job import JobRequest
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.server import store_watch
from isosim.settings import Settings
from isosim.store.blobs import PAGE, SIDE_BY_SIDE, Entry, Folder
from isosim.threads import StoreCalls
from isosim.worker.supervisor import Worker
from tests.processes import wait_until
from tests.stores import post_job, publish

ENCODER: Any = SimpleNamespace(digest="e" * 64, id="tiny")
RESIDENT = 10  # domains that each API process has loaded
MONTH = 30.4 * 86_400  # s
PRICES = {"LIST": 5e-6, "PUT": 5e-6, "GET": 4e-7, "HEAD": 4e-7}  # $ of S3 in us-east-1
KINDS = [*PRICES]
fork = multiprocessing.get_context("fork")


class Distant(Folder):
    """A folder that counts the requests that a bucket would get, each of which takes `latency` (s) more."""

    def __init__(self, root: Path, latency: float, counts: "SynchronizedArray[int]") -> None:
        super().__init__(root)
        self.address, self.latency, self.counts = "s3://bucket", latency, counts

    def note(self, kind: str, requests: int = 1, side_by_side: int = 1) -> None:
        with self.counts:
            self.counts[KINDS.index(kind)] += requests
        time.sleep(self.latency * -(-requests // side_by_side))

    def read(self, key: str) -> tuple[bytes, str]:
        self.note("GET")
        return super().read(key)

    def stamp(self, key: str) -> str:
        self.note("HEAD")
        return super().stamp(key)

    def write(self, key: str, content: bytes, *, new: bool = False, over: str | None = None) -> str:
        self.note("PUT")
        return super().write(key, content, new=new, over=over)

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        found = [*super().list(prefix, after)]
        self.note("LIST", max(1, -(-len(found) // PAGE)))
        return iter(found)

    def files(self, prefix: str, names: Iterable[str]) -> Any:  # the context of a folder
        names = [*names]
        self.note("GET", len(names), SIDE_BY_SIDE)
        return super().files(prefix, names)


class Api(Registry):
    """What an API process does with the store, without its encoder. It tells when it began to serve a version."""

    def __init__(self, blobs: Distant, told: Connection) -> None:
        self.told, store = told, DomainStore(blobs)
        source = StoredCalibrations(store, ENCODER.digest, ENCODER)  # `identity` has no weights to bind
        super().__init__(source, calls=StoreCalls(4))
        self.service: Any = SimpleNamespace(
            registry=self, champions=Champions(store), jobs=JobStore(blobs),
            results=MatchStore(blobs, 86_400.0), domains_listed=0, champions_current=0.0,
            metrics=SimpleNamespace(observe_jobs=lambda _: None, observe_job_end=lambda _: None),
        )  # fmt: skip

    def _serve(self, calibration: Calibration) -> None:
        super()._serve(calibration)
        self.told.send(((calibration.domain, calibration.version), time.monotonic()))

    async def run(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(16))
        await asyncio.gather(*(self.resolve(DomainRef(f"d{number}")) for number in range(RESIDENT)))
        watch = asyncio.create_task(store_watch.watch(self.service))
        while not self.service.domains_listed:  # noqa: ASYNC110 - it polls
            await asyncio.sleep(0.1)
        self.told.send("listed")
        await watch


class Fitting:
    """A child that fits for ever."""

    gone = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        time.sleep(seconds)
        return [{"stage": "fitting", "progress": 0.5}]


class FittingWorker(Worker):
    def _child(self) -> Any:
        return Fitting()


class Scale:
    """`seconds`: how long requests are counted in each state."""

    def __init__(self, root: Path, apis: int, workers: int, domains: int, seconds: float, latency: float) -> None:
        self.apis, self.workers, self.seconds = apis, workers, seconds
        self.counts = fork.Array("q", len(KINDS))
        self.blobs = Distant(root, latency, self.counts)
        self.domains, near, self.jobs = DomainStore(self.blobs), DomainStore(Folder(root)), JobStore(Folder(root))
        for number in range(RESIDENT):
            publish(near, f"d{number}", ENCODER)
        record = self.domains.read("d0")
        for number in range(RESIDENT, domains):
            near.records.write(f"d{number}", record)
        self.reading = {"names": self.requests(lambda: [*self.domains.names()])}
        for what in ("first champions", "champions"):
            self.reading[what] = self.requests(lambda: Champions(self.domains).read())
        self.rates: dict[str, dict[str, float]] = {}
        self.seen: list[list[float]] = []

    def requests(self, what: Callable[[], object]) -> Counter[str]:
        before = self.counts[:]
        what()
        return Counter(
            {kind: now - at for kind, at, now in zip(KINDS, before, self.counts[:], strict=True) if now > at}
        )

    def during(self, what: str, jobs: int) -> None:
        """Measures requests a second while so many more jobs run."""
        for number in range(jobs):
            post_job(self.jobs, JobRequest(f"d{number}", ENCODER.digest, "tiny"), ["a"])
        wait_until(lambda: all(job.worker is not None for job in self.jobs.unended()), 120)
        found = self.requests(lambda: time.sleep(self.seconds))
        self.rates[what] = {kind: count / self.seconds for kind, count in found.items()}

    def run(self, promotions: int) -> None:
        processes, told = [], []

        def start(run: Callable[[], object]) -> None:
            processes.append(fork.Process(target=run, daemon=True))
            processes[-1].start()

        try:
            for _ in range(self.apis):  # one after the other, as pods start
                here, there = fork.Pipe(duplex=False)
                start(lambda: asyncio.run(Api(self.blobs, there).run()))  # noqa: B023 - started at once
                told.append(here)
                heard(here, "listed")
            for _ in range(self.workers):
                start(lambda: FittingWorker(Settings(), JobStore(self.blobs), self.domains, None).serve())
            self.during("idle", 0)
            self.during("half of the workers busy", self.workers // 2)
            self.during("all workers busy", self.workers - self.workers // 2)
            for number in range(promotions):
                version = (name := f"d{number % RESIDENT}"), publish(self.domains, name, ENCODER)
                began = time.monotonic()
                self.seen.append([heard(one, version) - began for one in told])
        finally:
            for process in processes:
                process.kill()


def heard(told: Connection, what: object) -> float:
    """When an API process told this (s)."""
    while told.poll(30):
        if (message := told.recv()) == what:
            return 0.0
        if message[0] == what:
            return float(message[1])
    raise TimeoutError(what)


def test_processes_ask_little_of_a_bucket_and_see_a_promotion_at_once(tmp_path: Path) -> None:
    scale = Scale(tmp_path, 5, 6, 1100, 8.0, 0.0)
    scale.run(3)
    assert scale.reading["names"] == {"LIST": 2}
    assert scale.reading["champions"] == {"LIST": 2, "GET": 1}  # the summary, and no record
    assert all(rates["HEAD"] < 2.5 * scale.apis for rates in scale.rates.values())  # a look, and nothing else
    assert scale.rates["all workers busy"].get("PUT", 0) < 0.2 * scale.workers
    assert max(map(max, scale.seen)) < 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        whole = Scale(Path(folder), 50, 100, 10_000, 60.0, 0.03)
        print({what: dict(kinds) for what, kinds in whole.reading.items()}, flush=True)
        whole.run(30)
    for state, rates in whole.rates.items():
        print(state, {kind: round(rate, 1) for kind, rate in sorted(rates.items())}, end=" requests/s, $ a month: ")
        print(round(sum(PRICES[kind] * rate for kind, rate in rates.items()) * MONTH))
    print("s until seen by all: median, worst", median(max(one) for one in whole.seen), max(map(max, whole.seen)))
    print("s until seen by one: median", median(taken for one in whole.seen for taken in one))
