"""Keeps a worker running as a child process of the API, where ISOSIM_LOCAL_WORKER is on."""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import Self

from isosim.jobs.pulse import HUNG, silences
from isosim.redis_connection import end
from isosim.settings import Settings

log = logging.getLogger("isosim")

FIRST = 15.0  # s until the worker is started if there is no job yet; so a short-lived server starts none
AGAIN = 2.0  # s until a worker that has ended is started again
CHECK = 20.0  # s between checks whether it hangs
LAST_WORDS = 6.0  # s in which it gives back its job when the server stops
PASSED_ON = (
    "model_store",
    "seed_store",
    "redis_url",
    "redis_password",
    "job_timeout",
    "keep_versions",
)


class LocalWorker:
    """A worker process, which is started again if it ends or hangs. An async context manager.

    The worker and its children stay in this process's session. Linux compares priorities only within a session, and
    gives each session an equal share of processor time (sched(7), autogroup). With its own session, a calibration took
    half of the machine despite its low priority, and the p99 of single requests rose from 12 to 115 ms.
    """

    def __init__(self, settings: Settings, on_busy: Callable[[bool], None], *, jobs: bool) -> None:
        """`jobs`: whether there are open jobs already."""
        self.settings = settings
        self._wanted = asyncio.Event()
        if jobs:
            self.wake()
        self.on_busy = on_busy  # called with True when a calibration begins on this machine, with False when it ends
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if can_calibrate():
            self._task = asyncio.create_task(self._keep(), name="local-worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self._task)
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None  # noqa: S101 - it is a pipe
            self._process.stdin.close()  # the worker gives its job back, and ends
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LAST_WORDS)
            await kill(self._process)

    def wake(self) -> None:
        """Starts the worker if it is not started yet: there is a job."""
        self._wanted.set()

    async def _keep(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), FIRST)
        while True:
            try:
                await self._run()
            except OSError as error:
                log.error("the calibration worker cannot be started: %s", error)
            self.on_busy(False)
            await asyncio.sleep(AGAIN)

    async def _run(self) -> None:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "isosim.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=self._environment(),
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        while True:
            try:
                line = await asyncio.wait_for(process.stdout.readline(), CHECK)
            except TimeoutError:
                if silences().get(process.pid, 0.0) > HUNG:
                    log.error("the calibration worker hangs; it is started again")
                    await kill(process)
                continue
            if not line:
                break
            self.on_busy(line == b"busy\n")
        log.error("the calibration worker has ended with exit code %s; it is started again", await process.wait())

    def _environment(self) -> dict[str, str]:
        given = {name: getattr(self.settings, name) for name in PASSED_ON}
        passed = {f"ISOSIM_{name.upper()}": plain(value) for name, value in given.items() if value}
        return os.environ | passed | {"ISOSIM_THREADS": "1"}  # ours are for scoring


def plain(value: object) -> str:
    """A setting as the value of an environment variable."""
    secret = getattr(value, "get_secret_value", None)
    return str(value if secret is None else secret())


def can_calibrate() -> bool:
    """Whether the packages for calibrations are installed."""
    return importlib.util.find_spec("torch") is not None


async def kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
