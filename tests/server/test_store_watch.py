"""What a server looks for in the store while it serves: one look does not hold up another; how old champions may be."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isosim.api.readings import champions_age
from isosim.errors import CorruptArtifact
from isosim.jobs.job import JobRequest
from isosim.jobs.matches import MatchStore
from isosim.jobs.store import SILENCE, JobStore
from isosim.observability.metrics import Metrics
from isosim.server import store_watch
from isosim.server.store_watch import watch, watch_champions, watch_domains, watch_jobs
from tests.stores import domains_of, jobs_of, post_job

pytestmark = pytest.mark.anyio


class Champions:
    """Counts looks for new ones, which go as `look` says."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[None] = asyncio.Queue()
        self.behind = False
        self.look: Callable[[], Awaitable[object]] = self.succeed

    async def refresh(self) -> None:
        await self.look()
        self.looks.put_nowait(None)

    async def succeed(self) -> None:
        """The store is read."""

    async def fail(self) -> None:
        self.looks.put_nowait(None)
        raise OSError("the volume is away")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("POLL_SECONDS", 0.005), ("COUNT_SECONDS", 0.01), ("LIST_SECONDS", 0.001)):
        monkeypatch.setattr(store_watch, name, seconds)


@contextlib.asynccontextmanager
async def watched(watching: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A watch that goes on meanwhile, for ten seconds at most."""
    task = asyncio.create_task(watching)
    async with asyncio.timeout(10):
        yield
    task.cancel()


async def holds(condition: Callable[[], object]) -> None:
    """Waits for what nothing tells of."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def test_new_champions_are_seen_while_the_jobs_cannot_be_read(tmp_path: Path) -> None:
    hangs, asked, champions = threading.Event(), threading.Event(), Champions()

    def newest() -> None:
        asked.set()
        hangs.wait()

    jobs = SimpleNamespace(newest=newest, distant=False)
    service: Any = SimpleNamespace(
        jobs=jobs, registry=champions,
        metrics=Metrics(), domains=domains_of(tmp_path), domains_listed=None, champions_current=None,
    )  # fmt: skip
    async with watched(watch(service)):
        await asyncio.to_thread(asked.wait)
        while not champions.looks.empty():
            champions.looks.get_nowait()
        for _ in range(3):
            await champions.looks.get()
    hangs.set()


async def test_jobs_are_counted_and_each_end_once(tmp_path: Path) -> None:
    jobs, metrics = jobs_of(tmp_path), Metrics()
    before, after = (post_job(jobs, JobRequest("d", "digest", "tiny")) for _ in range(2))
    jobs.cancel(before.id)  # before this server started

    def counted(sample: str) -> float | None:
        return metrics.registry.get_sample_value(sample, {"status": "cancelled"})

    service: Any = SimpleNamespace(jobs=jobs, metrics=metrics, results=MatchStore(jobs.blobs, 60))
    async with watched(watch_jobs(service)):
        await holds(lambda: counted("isosim_jobs") == 1)
        jobs.cancel(after.id)
        await holds(lambda: counted("isosim_jobs") == 2)
        await holds(lambda: counted("isosim_job_ends_total") == 1)
        await asyncio.sleep(0.1)
        assert counted("isosim_job_ends_total") == 1
    volume = shutil.disk_usage(tmp_path)
    assert service.store_free == pytest.approx(volume.free / volume.total, abs=0.01)


async def test_jobs_in_a_bucket_are_counted_and_it_is_never_full() -> None:
    counts: list[object] = []
    jobs = SimpleNamespace(newest=list, silent=(), distant=True, blobs=SimpleNamespace(address="s3://bucket"))
    service: Any = SimpleNamespace(jobs=jobs, metrics=SimpleNamespace(observe_jobs=counts.append), store_free=None)
    async with watched(watch_jobs(service)):
        await holds(lambda: counts)
    assert service.store_free is None


async def test_a_job_whose_worker_is_silent_counts_as_waiting(tmp_path: Path) -> None:
    """Else the alert on jobs that no worker takes would stay silent too, while the only worker hangs."""
    clock, metrics = SimpleNamespace(now=0.0), Metrics()
    jobs = JobStore(jobs_of(tmp_path).blobs, lambda: clock.now)
    post_job(jobs, JobRequest("d", "digest", "tiny"))
    attempt = jobs.claim("worker")
    assert attempt is not None

    def counted(status: str) -> float | None:
        return metrics.registry.get_sample_value("isosim_jobs", {"status": status})

    async with watched(watch_jobs(SimpleNamespace(jobs=jobs, metrics=metrics, results=MatchStore(jobs.blobs, 60)))):  # type: ignore[arg-type]
        await holds(lambda: counted("running") == 1)
        clock.now += SILENCE + 1
        await holds(lambda: (counted("queued"), counted("running")) == (1, 0))
        attempt.beat("embedding", 0.5)
        await holds(lambda: (counted("queued"), counted("running")) == (0, 1))


async def test_the_age_of_champions_grows_while_looks_fail_hang_or_cannot_be_followed() -> None:
    champions = Champions()
    service: Any = SimpleNamespace(registry=champions, champions_current=None)

    async def fresh(expected: bool) -> None:
        await holds(lambda: champions_age(service) < 0.05 if expected else champions_age(service) > 0.3)  # type: ignore[operator]

    assert champions_age(service) is None  # nothing serves yet
    async with watched(watch_champions(service)):
        for _ in range(2):
            await champions.looks.get()
        await fresh(True)
        champions.look = champions.fail
        await fresh(False)
        champions.look = champions.succeed
        await fresh(True)
        champions.behind = True
        await fresh(False)
        champions.behind = False
        await fresh(True)
        champions.look = asyncio.Event().wait
        await fresh(False)


@pytest.mark.parametrize("error", [OSError("the volume is away"), CorruptArtifact("a damaged file")])
async def test_the_domains_are_those_of_the_last_listing_that_succeeded(error: Exception) -> None:
    failed = threading.Semaphore(0)

    def away() -> dict[str, int]:
        failed.release()
        raise error

    champions = SimpleNamespace(read=lambda: {"default": 1, "news": 2})
    service: Any = SimpleNamespace(domains_listed=None, champions=champions)
    async with watched(watch_domains(service)):
        await holds(lambda: service.domains_listed == 2)
        champions.read = away
        for _ in range(3):
            await asyncio.to_thread(failed.acquire)
        assert service.domains_listed == 2
        champions.read = dict  # an emptied volume
        await holds(lambda: service.domains_listed == 0)
