"""How posted calibrations get into the queue: none waits for the upload of another, and each is counted and charged."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isosim.api.calibration.calibrate import accept
from isosim.errors import Overloaded
from isosim.jobs.job import Job, JobRequest
from isosim.jobs.posted import Spool
from isosim.jobs.store import JobStore
from isosim.threads import StoreCalls
from tests.store.machines import Watched
from tests.stores import domains_of, jobs_of

pytestmark = pytest.mark.anyio
TRACE: Any = SimpleNamespace(grant=SimpleNamespace(id="ann"), span=None)


class Site:
    """The parts of a server that take a calibration, with a limit of two queued jobs. The first upload goes on until
    `may_end` is set, and then does as `upload` says."""

    def __init__(self, folder: Path) -> None:
        self.may_end, self.begun = threading.Event(), threading.Event()
        self.jobs: Any = JobStore(Watched(jobs_of(folder).blobs, self.does))
        self.charged: list[int] = []
        self.upload: Callable[[], object] = lambda: None
        self.service: Any = SimpleNamespace(
            store=StoreCalls(), domains=domains_of(folder), jobs=self.jobs, shared=False,
            hint=self.hint, limits=SimpleNamespace(owe=self.owe),
            settings=SimpleNamespace(max_queued_jobs=2, max_calibration_bytes=10**8),
        )  # fmt: skip

    def does(self, operation: str, *_: object) -> None:
        if operation == "upload" and not self.begun.is_set():
            self.begun.set()
            assert self.may_end.wait(20)
            self.upload()

    async def owe(self, _: object, texts: int) -> None:
        self.charged.append(texts)

    async def hint(self, _: Job) -> None:
        """Does not wait."""

    async def post(self, domain: str, key: str | None = None) -> int:
        request = JobRequest(domain, "e" * 64, "tiny", sentences=100)
        with Spool() as spool:
            spool.extend(["A boat."])
            return (await accept(self.service, TRACE, request, spool, [], key)).status_code


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_post_does_not_wait_for_the_upload_of_another_which_counts_as_queued(site: Site) -> None:
    slow = asyncio.create_task(site.post("slow"))
    await asyncio.to_thread(site.begun.wait, 20)
    assert await site.post("fast") == 202
    with pytest.raises(Overloaded, match="2 jobs are queued or running"):
        await site.post("third")
    site.may_end.set()
    assert await slow == 202
    assert len(site.jobs.index()) == 2
    with pytest.raises(Overloaded, match="2 jobs are queued or running"):
        await site.post("third")
    assert sum(site.charged) == 198


async def test_a_caller_who_leaves_during_the_upload_is_charged_for_the_job(site: Site) -> None:
    slow = asyncio.create_task(site.post("slow"))
    await asyncio.to_thread(site.begun.wait, 20)
    slow.cancel()
    await asyncio.sleep(0.1)
    assert not slow.done()  # its spool is being read
    site.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert (len(site.jobs.index()), site.charged) == (1, [99])


async def test_what_makes_no_job_is_not_charged(site: Site) -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    site.may_end.set()
    for _ in range(2):
        assert await site.post("same", "1") == 202
    assert sum(site.charged) == 99
    site.begun.clear()
    site.upload = fail
    with pytest.raises(OSError, match="full"):
        await site.post("slow")
    assert (sum(site.charged), len(site.jobs.index())) == (99, 1)
