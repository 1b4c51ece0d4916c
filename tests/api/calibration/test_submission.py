"""A calibration on its way in, on a volume that takes its time."""

import asyncio
from collections import Counter
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

from isosim.access.grants import ANYBODY
from isosim.api.calibration.calibrate import spooling
from isosim.jobs.spool import Spool
from isosim.jobs.store import JobStore
from isosim.threads import StoreCalls

TRACE: Any = SimpleNamespace(grant=ANYBODY)


def service(jobs: JobStore) -> Any:
    """The parts of the server that an upload uses."""
    return SimpleNamespace(jobs=jobs, store=StoreCalls(), uploads=Counter())


class SlowSpool(Spool):
    def __init__(self, root: Path, volume: Event) -> None:
        self.volume = volume
        assert volume.wait(5), "nobody else gets a turn"
        super().__init__(root)

    def close(self) -> None:
        assert self.volume.wait(5), "nobody else gets a turn"
        super().close()


class SlowStore(JobStore):
    """Its volume hangs while `volume` is cleared."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.volume = Event()

    def spool(self) -> Spool:
        return SlowSpool(self.root, self.volume)


def test_a_volume_that_hangs_holds_up_nobody_but_those_who_upload(tmp_path: Path) -> None:
    async def upload(jobs: SlowStore, opened: asyncio.Event) -> None:
        async with spooling(service(jobs), TRACE) as spool:
            spool.extend(["A boat."])
            jobs.volume.clear()
            opened.set()

    async def others_get_their_turn() -> None:
        jobs, opened = SlowStore(tmp_path), asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(upload(jobs, opened))
            await asyncio.sleep(0)  # it is at opening now, and only we can let it go on
            jobs.volume.set()
            await opened.wait()
            await asyncio.sleep(0)
            jobs.volume.set()  # and it was at closing
        assert list(jobs.root.iterdir()) == []

    asyncio.run(others_get_their_turn())


def test_text_of_a_caller_who_hangs_up_is_gone(tmp_path: Path) -> None:
    async def hang_up() -> None:
        jobs, opened = JobStore(tmp_path), asyncio.Event()

        async def upload() -> None:
            async with spooling(service(jobs), TRACE) as spool:
                spool.extend(["A boat."])
                opened.set()
                await asyncio.Event().wait()

        uploading = asyncio.create_task(upload())
        await opened.wait()
        uploading.cancel()
        await asyncio.wait([uploading])
        assert list(jobs.root.iterdir()) == []

    asyncio.run(hang_up())
