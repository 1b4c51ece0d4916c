"""What a server looks for in the store while it serves: one look does not hold up another; how old champions may be."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isosim.api.readings import champions_age
from isosim.errors import CorruptArtifact
from isosim.jobs.job import JobRequest
from isosim.observability.metrics import Metrics
from isosim.server import store_watch
from isosim.server.store_watch import watch, watch_champions, watch_domains, watch_jobs
from tests.stores import domains_of, jobs_of, post_job


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
    monkeypatch.setattr(store_watch, "POLL_SECONDS", 0.005)


def test_new_champions_are_seen_while_the_jobs_cannot_be_read(tmp_path: Path) -> None:
    async def seen() -> None:
        hangs, asked, champions = threading.Event(), threading.Event(), Champions()

        def newest() -> None:
            asked.set()
            hangs.wait()

        jobs = SimpleNamespace(newest=newest, distant=False)
        service: Any = SimpleNamespace(
            jobs=jobs, encoders=SimpleNamespace(registry=champions),
            metrics=Metrics(), domains=domains_of(tmp_path), domains_listed=None, champions_current=None,
        )  # fmt: skip
        watching = asyncio.create_task(watch(service))
        async with asyncio.timeout(10):
            await asyncio.to_thread(asked.wait)
            while not champions.looks.empty():
                champions.looks.get_nowait()
            for _ in range(3):
                await champions.looks.get()
        watching.cancel()
        hangs.set()

    asyncio.run(seen())


def test_jobs_are_counted_and_each_end_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def seen() -> None:
        monkeypatch.setattr(store_watch, "COUNT_SECONDS", 0.01)
        jobs, metrics = jobs_of(tmp_path), Metrics()
        before, after = (post_job(jobs, JobRequest("d", "digest", "tiny")) for _ in range(2))
        jobs.cancel(before.id)  # before this server started
        watching = asyncio.create_task(watch_jobs(SimpleNamespace(jobs=jobs, metrics=metrics)))  # type: ignore[arg-type]

        async def becomes(sample: str, value: float) -> None:
            while metrics.registry.get_sample_value(sample, {"status": "cancelled"}) != value:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async with asyncio.timeout(10):
            await becomes("isosim_jobs", 1)
            jobs.cancel(after.id)
            await becomes("isosim_jobs", 2)
            await becomes("isosim_job_ends_total", 1)
            await asyncio.sleep(0.1)
            await becomes("isosim_job_ends_total", 1)
        watching.cancel()

    asyncio.run(seen())


def test_the_age_of_champions_grows_while_looks_fail_hang_or_cannot_be_followed() -> None:
    async def seen() -> None:
        champions = Champions()
        service: Any = SimpleNamespace(
            encoders=SimpleNamespace(registry=champions), champions_current=None,
        )  # fmt: skip

        def age() -> float:
            value = champions_age(service)
            assert value is not None
            return value

        async def becomes(holds: Callable[[float], bool]) -> None:
            while not holds(age()):  # noqa: ASYNC110 - a clock is read; nothing tells of its moving on
                await asyncio.sleep(0.005)

        async def looks(count: int) -> None:
            for _ in range(count):
                await champions.looks.get()

        assert champions_age(service) is None  # nothing serves yet
        watching = asyncio.create_task(watch_champions(service))
        async with asyncio.timeout(10):
            await looks(2)
            await becomes(lambda seconds: seconds < 0.05)
            champions.look = champions.fail
            await becomes(lambda seconds: seconds > 0.3)
            champions.look = champions.succeed
            await becomes(lambda seconds: seconds < 0.05)
            champions.behind = True
            await becomes(lambda seconds: seconds > 0.3)
            champions.behind = False
            await becomes(lambda seconds: seconds < 0.05)
            champions.look = asyncio.Event().wait
            await becomes(lambda seconds: seconds > 0.3)
        watching.cancel()

    asyncio.run(seen())


@pytest.mark.parametrize("error", [OSError("the volume is away"), CorruptArtifact("a damaged file")])
def test_the_domains_are_those_of_the_last_listing_that_succeeded(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def seen() -> None:
        monkeypatch.setattr(store_watch, "LIST_SECONDS", 0.001)
        failed = threading.Semaphore(0)

        def away() -> dict[str, int]:
            failed.release()
            raise error

        champions = SimpleNamespace(read=lambda: {"default": 1, "news": 2})
        service: Any = SimpleNamespace(domains_listed=None, champions=champions)

        async def becomes(value: int) -> None:
            while service.domains_listed != value:  # noqa: ASYNC110 - nothing tells of a listing
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch_domains(service))
        async with asyncio.timeout(10):
            await becomes(2)
            champions.read = away
            for _ in range(3):
                await asyncio.to_thread(failed.acquire)
            assert service.domains_listed == 2
            champions.read = dict  # an emptied volume
            await becomes(0)
        watching.cancel()

    asyncio.run(seen())
