"""Requests of API processes and workers to one bucket, and how soon a promotion is seen.

The test uses an S3 server. `python -m tests.server.test_scale` has 50 API processes, 100 workers and 10,000 domains,
as threads: the server of the tests is too slow for them, so the bucket is in memory, and each request takes 30 ms.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any

import obstore
from obstore.store import MemoryStore

from isosim.domains.champions import Champions
from isosim.domains.registry import Registry, StoredCalibrations
from isosim.domains.store import DomainStore
from isosim.jobs.job import JobRequest
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import Calibration, DomainRef
from isosim.server import store_watch
from isosim.settings import Settings
from isosim.store.blobs import Bucket, opened
from isosim.threads import StoreCalls
from isosim.worker.supervisor import Worker
from tests.objects import Objects, objects  # noqa: F401 - a fixture
from tests.stores import post_job, publish

ENCODER: Any = SimpleNamespace(digest="e" * 64, id="tiny")
RESIDENT = 10  # domains that each API process has loaded
MONTH = 30.4 * 86_400  # s
PRICES = {"LIST": 5e-6, "PUT": 5e-6, "GET": 4e-7, "HEAD": 4e-7, "DELETE": 0.0}  # $ of S3 in us-east-1
KINDS = {"get": "GET", "head": "HEAD", "put": "PUT", "delete": "DELETE"}
Open = Callable[[], Any]  # the bucket, as another process opens it


class Counting:
    """obstore; notes the kind of each request, which takes `latency` (s) more."""

    def __init__(self, log: list[str], latency: float) -> None:
        self.log, self.latency = log, latency

    def note(self, kind: str) -> None:
        self.log.append(kind)
        time.sleep(self.latency)

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.note(KINDS[name])
            return getattr(obstore, name)(*given, **named)

        return call

    def list(self, *given: Any, **named: Any) -> Iterator[Any]:
        self.note("LIST")
        for number, page in enumerate(obstore.list(*given, **named)):
            if number:
                self.note("LIST")
            yield page


class Api(Registry):
    """What an API process does with the store, without its encoder; `seen`: when it began to serve versions."""

    def __init__(self, blobs: Any) -> None:
        self.seen: dict[tuple[str, int], float] = {}
        self.store = DomainStore(blobs)
        source = StoredCalibrations(self.store)
        source.calibrators[ENCODER.digest] = ENCODER  # `identity` has no weights to bind
        super().__init__(source, ENCODER.digest, calls=StoreCalls(4))
        self.service: Any = SimpleNamespace(
            encoders=SimpleNamespace(registry=self), champions=Champions(self.store), jobs=JobStore(blobs),
            results=MatchStore(blobs, 86_400.0), domains_listed=0, champions_current=0.0,
            metrics=SimpleNamespace(observe_jobs=lambda _: None, observe_job_end=lambda _: None),
        )  # fmt: skip

    def _serve(self, encoder: str, calibration: Calibration) -> None:
        super()._serve(encoder, calibration)
        self.seen[calibration.domain, calibration.version] = time.monotonic()


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


@contextmanager
def working(place: Open, count: int) -> Iterator[None]:
    blobs, settings = [place() for _ in range(count)], Settings()
    workers = [FittingWorker(settings, JobStore(one), DomainStore(one), None) for one in blobs]
    threads = [threading.Thread(target=worker.serve) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers * 2:
            worker.stop()
        for thread in threads:
            thread.join()


async def until(holds: Callable[[], object]) -> None:
    while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - it polls
        await asyncio.sleep(0.1)


class Scale:
    """`seconds`: how long requests are counted in each state. `latency`: what each takes more (s)."""

    def __init__(self, place: Open, apis: int, workers: int, domains: int, seconds: float, latency: float) -> None:
        self.place, self.workers, self.domains, self.seconds, self.latency = place, workers, domains, seconds, latency
        self.log: list[str] = []  # kinds of all requests
        self.store, self.jobs = DomainStore(place()), JobStore(place())
        for number in range(RESIDENT):
            publish(self.store, f"d{number}", ENCODER)
        record = self.store.read("d0")
        with ThreadPoolExecutor(8) as pool:
            names = (f"d{number}" for number in range(RESIDENT, domains))
            list(pool.map(lambda name: self.store.records.write(name, record), names))
        counted = DomainStore(self.counted())
        self.reading = {"names": self.requests(lambda: [*counted.names()])}
        for what in ("first champions", "champions"):
            self.reading[what] = self.requests(lambda: Champions(counted).read())
        self.apis = [Api(self.counted()) for _ in range(apis)]

    def counted(self) -> Any:
        blobs = self.place()
        blobs.api = Counting(self.log, self.latency)
        return blobs

    def requests(self, what: Callable[[], object]) -> Counter[str]:
        at = len(self.log)
        what()
        return Counter(self.log[at:])

    async def during(self, what: str, jobs: int) -> None:
        """Measures requests a second and $ a month while so many more jobs run."""
        for number in range(jobs):
            await asyncio.to_thread(post_job, self.jobs, JobRequest(f"d{number}", ENCODER.digest, "tiny"), ["a"])
        await until(lambda: all(job.worker is not None for job in self.jobs.unended()))
        found = await asyncio.to_thread(self.requests, lambda: time.sleep(self.seconds))
        self.rates[what] = {kind: count / self.seconds for kind, count in found.items()}

    async def run(self, promotions: int) -> None:
        self.rates: dict[str, dict[str, float]] = {}
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(200))
        watches = []
        for api in self.apis:  # one after the other, as pods start
            await asyncio.gather(*(api.resolve(DomainRef(f"d{number}")) for number in range(RESIDENT)))
            watches.append(asyncio.create_task(store_watch.watch(api.service)))
            await until(lambda: api.service.domains_listed)  # noqa: B023
        with working(self.counted, self.workers):
            await self.during("idle", 0)
            await self.during("half of the workers busy", self.workers // 2)
            await self.during("all workers busy", self.workers - self.workers // 2)
            self.seen = [await self.promoted(f"d{number % RESIDENT}") for number in range(promotions)]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    async def promoted(self, name: str) -> list[float]:
        """Seconds from a promotion until each API process serves the version."""
        number = await asyncio.to_thread(publish, self.store, name, ENCODER)
        began = time.monotonic()
        await until(lambda: all((name, number) in api.seen for api in self.apis))
        return [api.seen[name, number] - began for api in self.apis]


def test_processes_ask_little_of_a_bucket_and_see_a_promotion_at_once(objects: Objects) -> None:  # noqa: F811
    address = objects.bucket().as_posix().replace("s3:/", "s3://")
    scale = Scale(lambda: opened(address), 5, 6, 1100, 8.0, 0.0)
    asyncio.run(scale.run(3))
    assert scale.reading["names"] == {"LIST": 2}
    assert scale.reading["champions"] == {"LIST": 2, "GET": 1}  # the summary, and no record
    assert all(rates["HEAD"] < 2.5 * len(scale.apis) for rates in scale.rates.values())  # a look, and nothing else
    assert scale.rates["all workers busy"].get("PUT", 0) < 0.2 * scale.workers
    assert max(map(max, scale.seen)) < 2


if __name__ == "__main__":
    memory = MemoryStore()
    whole = Scale(lambda: Bucket(memory, "memory://"), 50, 100, 10_000, 60.0, 0.03)
    print({what: dict(kinds) for what, kinds in whole.reading.items()}, flush=True)
    asyncio.run(whole.run(30))
    for state, rates in whole.rates.items():
        print(state, {kind: round(rate, 1) for kind, rate in sorted(rates.items())}, end=" requests/s, $ a month: ")
        print(round(sum(PRICES[kind] * rate for kind, rate in rates.items()) * MONTH))
    print("s until seen by all: median, worst", median(max(one) for one in whole.seen), max(map(max, whole.seen)))
    print("s until seen by one: median", median(taken for one in whole.seen for taken in one))
