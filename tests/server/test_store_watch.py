"""What a server looks for in the store while it serves: one look does not hold up another."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.adapters.jobs.census import JobCensus
from service.adapters.jobs.store import JobStore
from service.core.jobs.job import Job
from service.observability.metrics import Metrics
from service.server.store_watch import watch


class HungRunner:
    """Its Redis does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def recover(self, waiting: Sequence[Job]) -> None:
        self.asked.set()
        await asyncio.Event().wait()


class Champions:
    """Counts how often somebody looks for new ones."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[None] = asyncio.Queue()

    async def refresh(self) -> None:
        self.looks.put_nowait(None)


def test_new_champions_are_seen_while_jobs_cannot_be_handed_over(tmp_path: Path) -> None:
    async def seen() -> None:
        jobs, runner, champions = JobStore(tmp_path), HungRunner(), Champions()
        settings = SimpleNamespace(poll_seconds=0.01, keep_interrupted=60, keep_jobs=10)
        service: Any = SimpleNamespace(
            jobs=jobs, runner=runner, encoders=champions, settings=settings, metrics=Metrics()
        )
        watching = asyncio.create_task(watch(service, JobCensus(jobs)))
        async with asyncio.timeout(10):
            await runner.asked.wait()
            while not champions.looks.empty():
                champions.looks.get_nowait()
            for _ in range(3):
                await champions.looks.get()
        watching.cancel()

    asyncio.run(seen())
